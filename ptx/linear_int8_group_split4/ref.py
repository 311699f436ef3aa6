"""Reference of `linear_int8_group_split4`, in the dtype of `x`. The contract is in `op.py`."""

from ptx.linear_int8_group.ref import linear_int8_group
from ptx.linear_split import write_split
from ptx.numerics import Array


def linear_int8_group_split4(
    x: Array, codes: Array, scales: Array, y0: Array, y1: Array, y2: Array, y3: Array
) -> None:
    """x [T, K], codes i8 [N, K], scales bf16 bits [N, K / 128] -> y0 [T, A] .. y3 [T, D]."""
    write_split(linear_int8_group, x, (codes, scales), (y0, y1, y2, y3))
