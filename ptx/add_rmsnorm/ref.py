"""Reference of `add_rmsnorm`, in the dtype of `h`. The contract is in `op.py`."""

from ptx.numerics import Array
from ptx.rmsnorm.ref import rmsnorm


def add_rmsnorm(
    x: Array, h: Array, w: Array, eps: float, offset: float, y: Array | None = None
) -> Array:
    """x [T, D], h [T, D] updated in place, w [D] -> y [T, D]."""
    h += x
    return rmsnorm(h, w, eps, offset, y)
