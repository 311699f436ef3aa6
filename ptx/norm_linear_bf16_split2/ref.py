"""Reference of `norm_linear_bf16_split2`. The contract is in `op.py`."""

from ptx.linear_few_ref import split
from ptx.norm_linear_bf16.ref import norm_linear_bf16
from ptx.numerics import Array


def norm_linear_bf16_split2(
    x: Array, gain: Array, w: Array, y0: Array, y1: Array, eps: float, offset: float
) -> None:
    """x f32 [T, K], gain f32 [K], w bf16 bits [N, K] to y0, y1."""
    split(norm_linear_bf16(x, gain, w, eps, offset), y0, y1)
