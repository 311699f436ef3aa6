"""Reference of `linear_int4_group128_split4`, in the dtype of `x`. The contract is in `op.py`."""

from ptx.linear_int4_group128.ref import linear_int4_group128
from ptx.linear_split import write_split
from ptx.numerics import Array


def linear_int4_group128_split4(
    x: Array, codes: Array, scales: Array, y0: Array, y1: Array, y2: Array, y3: Array
) -> None:
    """x [T, K], codes u8 [N, K / 2], scales bf16 bits [N, K / 128] -> y0 [T, A] .. y3 [T, D]."""
    write_split(linear_int4_group128, x, (codes, scales), (y0, y1, y2, y3))
