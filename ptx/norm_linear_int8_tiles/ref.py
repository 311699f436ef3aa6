"""Reference of `norm_linear_int8_tiles`. The contract is in `op.py`."""

from ptx.linear_few_ref import norm_product
from ptx.numerics import Array


def norm_linear_int8_tiles(
    x: Array, gain: Array, w: Array, eps: float, offset: float, y: Array | None = None
) -> Array:
    """x f32 [T, K], gain f32 [K], w u8 [R, I, Q] -> y [T, N]."""
    p = norm_product("int8", x, gain, w, eps, offset)
    if y is None:
        return p
    y[...] = p
    return y
