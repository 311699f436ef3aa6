"""Reference of `norm_linear_int8_tiles_swiglu`. The contract is in `op.py`."""

from ptx.linear_few_ref import norm_product, swiglu_bf16
from ptx.numerics import Array


def norm_linear_int8_tiles_swiglu(
    x: Array, gain: Array, w: Array, eps: float, offset: float, y: Array | None = None
) -> Array:
    """x f32 [T, K], gain f32 [K], w u8 [R, I, Q] -> y [T, F], bf16 bits where y is given."""
    return swiglu_bf16(norm_product("int8", x, gain, w, eps, offset), y)
