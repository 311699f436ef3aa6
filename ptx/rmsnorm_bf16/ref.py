"""Reference of `rmsnorm_bf16`, in the dtype of `x`. The contract is in `op.py`."""

from ptx.numerics import Array, round_to_bf16
from ptx.rmsnorm.ref import rmsnorm


def rmsnorm_bf16(x: Array, w: Array, eps: float, offset: float, y: Array | None = None) -> Array:
    """x [T, D], w [D] -> y bf16 bits [T, D], or the values before that rounding without a y."""
    wide = rmsnorm(x, w, eps, offset)
    if y is None:
        return wide
    y[...] = round_to_bf16(wide)
    return y
