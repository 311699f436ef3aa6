"""Owns what the tests of bf16 linears of few tokens share: shapes at the edges, inputs, checks.

It must not know how an op computes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from ptx.bf16_few_kernel import CHIPS, MAX_TOKENS, OUTPUTS, STEP, few_kernels, norm_op
from ptx.numerics import Array, round_to_bf16
from ptx.op import Op

# T, widths of the outputs, K. One token, an odd few, all columns of a product, one past them, the
# most; one step of K, fewer than there are warps, two chunks of which the last is shorter and in
# which only some warps have a third step. The last shapes are served by the portable kernel alone.
SHAPES: dict[str, list[tuple[int, tuple[int, ...], int]]] = {
    "none": [(1, (8,), 32), (3, (8,), 1120), (8, (8,), 192), (17, (16,), 64), (2, (8,), 40)],
    "add": [(1, (8,), 1120), (9, (8,), 416), (16, (8,), 32)],
    "swiglu": [(1, (8,), 32), (4, (8,), 1120), (16, (8,), 416), (17, (8,), 64)],
    "split2": [(1, (9, 5), 1120), (8, (6, 4), 64), (16, (4, 9), 416), (17, (8, 8), 64)],
    "split3": [(1, (6, 4, 5), 1120), (5, (4, 9, 5), 32), (9, (4, 4, 6), 416), (2, (8, 4, 7), 72)],
}
# The same for chips of `few_blocks`: three blocks, parts of two tiles. Three parts of a block, one
# more than there are buffers, whose tiles differ in rows; rings that go round. For add one
# part, of more cells than threads.
WALKS: dict[str, list[tuple[int, tuple[int, ...], int]]] = {
    "none": [(1, (208,), 544), (9, (208,), 32)],
    "add": [(1, (208,), 544), (9, (208,), 32), (16, (88,), 64)],
    "swiglu": [(1, (104,), 544), (9, (104,), 32)],
    "split2": [(1, (99, 106), 544), (9, (60, 148), 32)],
    "split3": [(2, (99, 80, 26), 544), (9, (60, 52, 96), 32)],
}


def tuned_shapes(epilogue: str) -> list[tuple[int, tuple[int, ...], int]]:
    """Those of SHAPES that kernels of few tokens serve."""
    return [shape for shape in SHAPES[epilogue] if shape[0] <= MAX_TOKENS and shape[2] % STEP == 0]


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


def few_blocks(op: Op, n_blocks: int = 3, max_stages: int = 3, max_tiles: int = 2) -> Op:
    """`op` with tuned kernels of a few blocks, short pieces of rows and parts of a tile or two."""
    chips = {
        name: replace(chip, n_blocks=n_blocks, max_stages=max_stages, piece_steps=9,
                      max_tiles=max_tiles, max_tiles_direct=max_tiles)
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
        part: dict[str, Any] = {**args, **{name: args[name][rows] for name in names}}
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


def feed_forward(bench: Any, first: Op, second: Op, third: Op) -> tuple[Array, Array]:
    """What a chain writes to h and z, and what the references say, both in float32.

    `first` is the swiglu of the rmsnorm of h, `second` adds its product to h, `third` multiplies
    the rmsnorm of that. Launches that begin early must wait for h and for what lies between, or
    the emulator refuses.
    """
    rng = np.random.default_rng(5)
    h, gain = rng.standard_normal((3, 64)).astype(np.float32), rng.uniform(0, 1, 64)
    gate_up, down, head = (
        round_to_bf16(rng.standard_normal(shape) / 8) for shape in ((64, 64), (64, 32), (8, 64))
    )
    cells = {"h": h, "gain": gain.astype(np.float32), "gate_up": gate_up, "down": down,
             "head": head, "y": np.zeros((3, 32), np.uint16), "z": np.zeros((3, 8), np.float32)}
    on = {}
    for name, array in cells.items():
        on[name] = bench.device.allocate(array.shape, "bf16" if array.dtype == np.uint16 else "f32",
                                         name)
        bench.device.upload(on[name], array)
    norm = {"gain": on["gain"], "eps": 1e-5, "offset": 1.0}
    bench.device.launch(first, x=on["h"], w=on["gate_up"], y=on["y"], **norm)
    bench.device.launch(second, x=on["y"], w=on["down"], h=on["h"])
    bench.device.launch(third, x=on["h"], w=on["head"], y=on["z"], **norm)
    got = np.concatenate([bench.device.download(on[name]) for name in ("h", "z")], axis=1)

    norm = {"gain": cells["gain"], "eps": 1e-5, "offset": 1.0}
    refs = [getattr(import_module(f"ptx.{op.name}.ref"), op.name) for op in (first, second, third)]
    refs[0](x=h, w=gate_up, y=cells["y"], **norm)
    refs[1](x=cells["y"], w=down, h=h)
    refs[2](x=h, w=head, y=cells["z"], **norm)
    return got, np.concatenate([h, cells["z"]], axis=1)
