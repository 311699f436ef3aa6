"""Reference of `linear_split4`, in the dtype of `x`. The contract is in `op.py`."""

from ptx.linear.ref import linear
from ptx.linear_split import write_split
from ptx.numerics import Array


def linear_split4(x: Array, w: Array, y0: Array, y1: Array, y2: Array, y3: Array) -> None:
    """x [T, K], w [A + B + C + D, K] -> y0 [T, A], y1 [T, B], y2 [T, C], y3 [T, D]."""
    write_split(linear, x, (w,), (y0, y1, y2, y3))
