"""Reference of `add_rmsnorm_bf16`, in the dtype of `h`. The contract is in `op.py`."""

from ptx.numerics import Array
from ptx.rmsnorm_bf16.ref import rmsnorm_bf16


def add_rmsnorm_bf16(
    x: Array, h: Array, w: Array, eps: float, offset: float, y: Array | None = None
) -> Array:
    """x [T, D], h [T, D] updated in place, w [D] -> y bf16 bits [T, D], or unrounded without y."""
    h += x
    return rmsnorm_bf16(h, w, eps, offset, y)
