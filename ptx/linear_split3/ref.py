"""Reference of `linear_split3`, in the dtype of `x`. The contract is in `op.py`."""

from ptx.linear.ref import linear
from ptx.linear_split import write_split
from ptx.numerics import Array


def linear_split3(x: Array, w: Array, y0: Array, y1: Array, y2: Array) -> None:
    """x [T, K], w [A + B + C, K] -> y0 [T, A], y1 [T, B], y2 [T, C]."""
    write_split(linear, x, (w,), (y0, y1, y2))
