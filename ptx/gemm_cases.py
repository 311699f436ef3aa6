"""Owns what the tests of the gemm family share: shapes past every edge, operands, small walks.

It must not know how an op computes.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ptx import gemm_kernel
from ptx.numerics import Array, round_to_bf16
from ptx.op import Op, OpError

# T, columns of the output, K: a run of 16 bytes alone, one and one past a warp's 32 of k.
FEW = [(1, 8, 8), (3, 8, 40), (5, 24, 104)]
# One past what the tuned kernels leave to others; one tile and its edges, also in pairs of blocks
# of 8 columns; K past one stage, and past those of sm_80.
MANY = [(17, 8, 8), (129, 104, 72), (40, 24, 264)]
# Tiles of sm_90a, T, columns, K: three rows of tiles, of which the last is a short group, several
# columns with a rest, and so many stages in all that the ring goes round. Blocks of 8 columns are
# even in number, and odd.
WALKS = [((128, 96), 270, 200, 136), ((256, 72), 581, 80, 136)]
# The same for swiglu, of whose tiles gate's rows are half.
PAIRED_WALKS = [((128, 64), 270, 80, 136), ((256, 80), 581, 48, 136)]
Inputs = dict[str, Any]


def inputs(epilogue: str, n_tokens: int, width: int, n_inner: int, whole: bool = False) -> Inputs:
    """x, w, and h for `add`. Of `whole` numbers, so small that sums in any order are exact."""
    rng = np.random.default_rng(n_tokens + width)
    n_rows = 2 * width if epilogue == "swiglu" else width

    def draw(*shape: int) -> Array:
        if whole:
            return rng.integers(-4, 5, shape).astype(np.float64)
        return rng.standard_normal(shape)

    scale = 1 if whole else 2 / math.sqrt(n_inner)
    found = {"x": round_to_bf16(draw(n_tokens, n_inner) * scale),
             "w": round_to_bf16(draw(n_rows, n_inner))}
    return {**found, "h": draw(n_tokens, width)} if epilogue == "add" else found


def small_walk(monkeypatch: pytest.MonkeyPatch, tile: tuple[int, int]) -> None:
    """Let so few blocks run that each walks over several tiles, in groups of two rows of tiles.

    `tile` is tokens and rows of w on sm_90a.
    """
    monkeypatch.setattr(gemm_kernel, "BLOCKS", 2)
    monkeypatch.setattr(gemm_kernel, "GROUP_TOKENS", 2 * tile[0])
    monkeypatch.setattr(gemm_kernel, "WIDTHS", {tile[0]: (tile[1], tile[1])})


def tuned(kernels: Callable[..., Iterator[Any]], op: Op, args: Inputs) -> Iterator[Any]:
    """Benches of the kernels that serve many tokens, without the portable one, which is slow."""
    for bench in kernels(op, **args):
        if bench._kernel.target != "portable":
            yield bench


def check_rows(bench: Any, op: Op, args: Inputs) -> None:
    """Rows have the same bits among fewer others and in another order; still many tokens."""
    (whole,) = bench.run(op, **args).values()
    names = [name for name in ("x", "h", "y") if name in args]
    for rows in (np.arange(len(whole))[::-1], np.arange(5, 5 + 24)):
        part: Inputs = {**args, **{name: args[name][rows] for name in names}}
        (got,) = bench.run(op, n_guard=2, **part).values()
        assert got.tobytes() == whole[rows].tobytes(), f"{op.name}: rows {rows[:3]}.. have new bits"


def check_refusals(bench: Any, op: Op, epilogue: str) -> None:
    """Shapes that are no whole runs, and those that do not belong together."""
    width = gemm_kernel.OUTPUTS[epilogue][2]
    for shape, words in (((2, 8, 12), "K a multiple of 8"), ((2, 12, 8), f"{width} a multiple")):
        with pytest.raises(OpError, match=f"{op.name}: needs {words}"):
            bench.run(op, **_given(epilogue, inputs(epilogue, *shape)))
    args = inputs(epilogue, 2, 8, 16)
    with pytest.raises(OpError, match=f"{op.name}: w is"):
        bench.run(op, **_given(epilogue, {**args, "w": args["w"][:, :8]}))
    if epilogue == "swiglu":
        with pytest.raises(OpError, match="needs N = 2 F"):
            bench.run(op, **{**args, "w": args["w"][:8], "y": np.zeros((2, 8), np.uint16)})


def _given(epilogue: str, args: Inputs) -> Inputs:
    """With y for swiglu, whose width no input has."""
    y = np.zeros((len(args["x"]), len(args["w"]) // 2), np.uint16)
    return {**args, "y": y} if epilogue == "swiglu" else args
