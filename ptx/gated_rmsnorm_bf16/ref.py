"""Reference of `gated_rmsnorm_bf16`, in the dtype of `o`. The contract is in `op.py`."""

from ptx.gated_rmsnorm.ref import gated_rmsnorm
from ptx.numerics import Array, round_to_bf16


def gated_rmsnorm_bf16(o: Array, z: Array, w: Array, eps: float, y: Array | None = None) -> Array:
    """o, z [T, Nv, Dv], w [Dv] -> y bf16 bits [T, Nv, Dv], or the values before that rounding
    without a y."""
    wide = gated_rmsnorm(o, z, w, eps)
    if y is None:
        return wide
    y[...] = round_to_bf16(wide)
    return y
