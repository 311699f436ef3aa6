"""Reference of `norm_linear_bf16_swiglu`. The contract is in `op.py`."""

from ptx.linear_few_ref import swiglu_bf16
from ptx.norm_linear_bf16.ref import norm_linear_bf16
from ptx.numerics import Array


def norm_linear_bf16_swiglu(
    x: Array, gain: Array, w: Array, eps: float, offset: float, y: Array | None = None
) -> Array:
    """x f32 [T, K], gain f32 [K], w bf16 bits [2 F, K] -> y [T, F], bf16 bits where y is given."""
    return swiglu_bf16(norm_linear_bf16(x, gain, w, eps, offset), y)
