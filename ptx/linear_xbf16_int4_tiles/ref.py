"""Reference of `linear_xbf16_int4_tiles`. The contract is in `op.py`."""

from ptx.linear_few_ref import product
from ptx.numerics import Array


def linear_xbf16_int4_tiles(
    x: Array, w: Array, y: Array | None = None
) -> Array:
    """x bf16 bits [T, K], w u8 [R, I, Q] -> y [T, N]."""
    p = product("int4", x, w)
    if y is None:
        return p
    y[...] = p
    return y
