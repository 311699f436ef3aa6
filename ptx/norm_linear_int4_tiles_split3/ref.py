"""Reference of `norm_linear_int4_tiles_split3`. The contract is in `op.py`."""

from ptx.linear_few_ref import norm_product, split
from ptx.numerics import Array


def norm_linear_int4_tiles_split3(
    x: Array, gain: Array, w: Array, y0: Array, y1: Array, y2: Array, eps: float, offset: float
) -> None:
    """x f32 [T, K], gain f32 [K], w u8 [R, I, Q] to y0, y1, y2."""
    split(norm_product("int4", x, gain, w, eps, offset), y0, y1, y2)
