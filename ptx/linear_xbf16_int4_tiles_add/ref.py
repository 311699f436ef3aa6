"""Reference of `linear_xbf16_int4_tiles_add`. The contract is in `op.py`."""

from ptx.linear_few_ref import product
from ptx.numerics import Array


def linear_xbf16_int4_tiles_add(
    x: Array, w: Array, h: Array
) -> None:
    """x bf16 bits [T, K], w u8 [R, I, Q] added to h [T, N]."""
    h += product("int4", x, w)
