"""Reference of `linear_bf16_split3`, in the dtype of `x`. The contract is in `op.py`."""

from ptx.linear_bf16.ref import linear_bf16
from ptx.linear_split import write_split
from ptx.numerics import Array


def linear_bf16_split3(x: Array, w: Array, y0: Array, y1: Array, y2: Array) -> None:
    """x [T, K], w bf16 bits [A + B + C, K] -> y0 [T, A], y1 [T, B], y2 [T, C]."""
    write_split(linear_bf16, x, (w,), (y0, y1, y2))
