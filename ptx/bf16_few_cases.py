"""Owns what the tests of bf16 linears of few tokens share: shapes at the edges, inputs, checks.

It must not know how an op computes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from ptx.bf16_few_kernel import CHIPS, OUTPUTS, few_kernels, norm_op
from ptx.numerics import Array, round_to_bf16
from ptx.op import Op

# T, widths of the outputs, K. One token, an odd few, all columns of a product, one past them, the
# most; one row, a tile, one row past it; one step of K, fewer than there are warps, an odd number
# of chunks of which the last is short. The last shapes are served by the portable kernel alone.
SHAPES: dict[str, list[tuple[int, tuple[int, ...], int]]] = {
    "none": [(1, (8,), 32), (3, (40,), 1632), (8, (24,), 192), (17, (16,), 64), (2, (8,), 40)],
    "add": [(1, (40,), 1632), (9, (24,), 320), (16, (8,), 32)],
    "swiglu": [(1, (8,), 32), (4, (24,), 1632), (16, (16,), 320), (17, (8,), 64)],
    "split2": [(1, (9, 16), 1632), (2, (48, 3), 64), (16, (48, 48), 320), (17, (8, 8), 64)],
    "split3": [(1, (16, 1, 8), 864), (5, (8, 24, 16), 32), (9, (8, 8, 1), 320), (2, (8, 1, 7), 72)],
}
# A chip of three blocks: T, widths, K. Parts of several tiles, whose rows and last chunks differ;
# more parts than there are buffers, and rings that go round.
WALKS: dict[str, list[tuple[int, tuple[int, ...], int]]] = {
    "none": [(1, (320,), 288), (9, (152,), 160)],
    "add": [(1, (320,), 288), (9, (152,), 160)],
    "swiglu": [(1, (160,), 288), (9, (88,), 160)],
    "split2": [(1, (170, 150), 288), (9, (48, 100), 160)],
    "split3": [(2, (170, 100, 50), 288), (9, (48, 60, 40), 160)],
}


def epilogue_of(op: Op) -> str:
    """Which epilogue an op of the family has."""
    last = op.name.rpartition("_")[2]
    return last if last in OUTPUTS else "none"


def few_inputs(
    op: Op, n_tokens: int, widths: tuple[int, ...], n_in: int, whole: bool = False
) -> dict[str, Any]:
    """All arguments of a launch, outputs as poison (but h). Of `whole` numbers, so small that sums
    in any order are exact."""
    rng = np.random.default_rng(n_tokens + sum(widths) + n_in)
    epilogue = epilogue_of(op)
    n_rows = sum(widths) * (2 if epilogue == "swiglu" else 1)

    def draw(*shape: int) -> Array:
        if whole:
            return rng.integers(-4, 5, shape).astype(np.float64)
        return rng.standard_normal(shape)

    x, w = draw(n_tokens, n_in), draw(n_rows, n_in) / (1 if whole else math.sqrt(n_in))
    inputs: dict[str, Any] = {"x": x, "w": round_to_bf16(w)}
    if "gain" in {param.name for param in op.params}:
        inputs["x"] = x * 2.0 ** rng.integers(-2, 3, (n_tokens, 1))
        inputs |= {"gain": rng.uniform(-0.5, 0.5, n_in), "eps": 1e-5, "offset": 1.0}
    else:
        inputs["x"] = round_to_bf16(x)
    for (name, _), width in zip(OUTPUTS[epilogue].items(), widths, strict=True):
        if epilogue == "add":
            inputs[name] = draw(n_tokens, width)
        elif epilogue == "swiglu":
            inputs[name] = np.full((n_tokens, width), 0x7FFF, np.uint16)
        else:
            inputs[name] = np.full((n_tokens, width), np.nan)
    return inputs


def few_blocks(op: Op) -> Op:
    """`op` with tuned kernels of three blocks, short pieces of rows and parts of two tiles."""
    chips = {
        name: replace(
            chip, n_blocks=3, max_stages=3, piece_steps=4, max_tiles=2, max_tiles_direct=2
        )
        for name, chip in CHIPS.items()
    }
    epilogue = epilogue_of(op)
    if "gain" in {param.name for param in op.params}:
        return norm_op(op.name, epilogue, op.examples, chips)
    return replace(op, kernels=few_kernels(op.name, epilogue, chips))


def tuned(kernels: Callable[..., Iterator[Any]], op: Op, args: dict[str, Any]) -> Iterator[Any]:
    """Benches of the kernels for few tokens that fit `args`; at least one does."""
    found = [bench for bench in kernels(op, **args) if bench._kernel.target != "portable"]
    assert found
    yield from found


def check_rows(bench: Any, op: Op, args: dict[str, Any]) -> None:
    """A token's bits are the same among 16, 9, 8, 3 tokens and alone."""
    names = [name for name in ("x", "h", "y", "y0", "y1", "y2") if name in args]
    whole = bench.run(op, **args)
    for rows in (np.arange(9)[::-1], np.arange(8, 16), np.array([3, 1, 11]), np.array([15])):
        part = {**args, **{name: args[name][rows] for name in names}}
        for name, got in bench.run(op, **part).items():
            same = got.tobytes() == whole[name][rows].tobytes()
            assert same, f"{op.name}: {name} of tokens {rows} has new bits"


def refused(op: Op, sentence: str) -> dict[str, Any]:
    """Arguments that break one of the op's requirements, and no other."""
    inputs = few_inputs(op, 2, (16,) * len(OUTPUTS[epilogue_of(op)]), 64)
    if sentence.startswith("K "):
        for name in ("x", "gain", "w"):
            inputs[name] = inputs[name][..., :-4]
    else:
        inputs["w"] = inputs["w"][1:]
    return inputs
