"""Owns what the tests of linear ops over weight tiles share: shapes at the edges, inputs, refusals.

It must not know how an op computes.
"""

import math
from typing import Any

import numpy as np

from ptx.linear_few import GROUP, OUTPUTS
from ptx.numerics import Array, round_to_bf16
from ptx.op import Op
from ptx.weight_tiles import ROWS, TILE_BYTES, tile

# T, widths of the outputs, groups of K. One token, an odd few, all columns of a product, one past
# them, the most and past it; one warp's groups, more than there are warps; odd numbers of tiles.
SHAPES: dict[str, list[tuple[int, tuple[int, ...], int]]] = {
    "none": [(1, (8,), 1), (3, (40,), 9), (8, (24,), 2), (17, (16,), 3)],
    "add": [(1, (40,), 9), (9, (24,), 2), (16, (8,), 1), (17, (16,), 3)],
    "swiglu": [(1, (8,), 1), (4, (24,), 9), (16, (16,), 2), (17, (16,), 3)],
    "split2": [(1, (8, 16), 9), (2, (40, 8), 1), (17, (8, 8), 2)],
    "split3": [(1, (16, 8, 8), 9), (5, (8, 24, 16), 1), (17, (8, 8, 8), 2)],
}


def epilogue_of(op: Op) -> str:
    """Which epilogue an op of the family has."""
    last = op.name.rpartition("_")[2]
    return last if last in OUTPUTS else "none"


def weight_of(op: Op) -> str:
    """The number format of its weight."""
    return "int4" if "int4" in op.name else "int8"


def few_inputs(op: Op, n_tokens: int, widths: tuple[int, ...], n_groups: int) -> dict[str, Any]:
    """All arguments of a launch, outputs as poison (but h)."""
    rng = np.random.default_rng(n_tokens + sum(widths) + n_groups)
    epilogue, weight = epilogue_of(op), weight_of(op)
    n_rows, n_in = sum(widths) * (2 if epilogue == "swiglu" else 1), GROUP * n_groups
    x = rng.standard_normal((n_tokens, n_in)) * 2.0 ** rng.integers(-2, 3, (n_tokens, 1))
    w = tiles(rng, weight, n_rows, n_groups)
    inputs: dict[str, Any] = {"x": x, "w": w}
    if "gain" in {param.name for param in op.params}:
        inputs |= {"gain": rng.uniform(-0.5, 0.5, n_in), "eps": 1e-5, "offset": 1.0}
    else:
        inputs["x"] = round_to_bf16(x)
    for (name, _), width in zip(OUTPUTS[epilogue].items(), widths, strict=True):
        if epilogue == "add":
            inputs[name] = rng.standard_normal((n_tokens, width))
        elif epilogue == "swiglu":
            inputs[name] = np.full((n_tokens, width), 0x7FFF, np.uint16)
        else:
            inputs[name] = np.full((n_tokens, width), np.nan)
    return inputs


def tiles(rng: np.random.Generator, weight: str, n_rows: int, n_groups: int) -> Array:
    """Tiles of a random weight whose products with unit cells are near 1; scales are all apart."""
    n_in = GROUP * n_groups
    if weight == "int4":
        low, high = rng.integers(-7, 8, (2, n_rows, n_in // 2)) & 15
        codes = (low | high << 4).astype(np.uint8)
    else:
        codes = rng.integers(-127, 128, (n_rows, n_in)).astype(np.int8)
        codes[0, :2] = -127, 127
    typical = 0.25 if weight == "int4" else 1 / 70
    scales = typical / math.sqrt(n_in) * 2.0 ** rng.uniform(-1, 1, (n_rows, n_groups))
    return tile(weight, codes, round_to_bf16(scales))


def refused(op: Op, sentence: str) -> dict[str, Any]:
    """Arguments that break one of the op's requirements, and no other."""
    epilogue = epilogue_of(op)
    widths = (16,) * len(OUTPUTS[epilogue])
    inputs = few_inputs(op, 2, widths, 2)
    if sentence.startswith("K ="):
        for name in inputs.keys() & {"x", "gain"}:
            inputs[name] = np.concatenate([inputs[name], inputs[name][..., :ROWS]], axis=-1)
    elif sentence.startswith("Q ="):
        inputs["w"] = inputs["w"][..., 1:]
    elif sentence.startswith("F "):
        half = TILE_BYTES[weight_of(op)]
        inputs["w"] = np.zeros((2, 3, half), np.uint8)
        inputs["y"] = inputs["y"][:, :12]
    else:
        inputs["w"] = inputs["w"][:, 1:]
    return inputs
