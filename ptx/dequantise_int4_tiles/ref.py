"""Reference of `dequantise_int4_tiles`, in bits. The contract is in `op.py`."""

from ptx.dequantise_int4_group128.ref import dequantise_int4_group128
from ptx.numerics import Array
from ptx.weight_tiles import untile


def dequantise_int4_tiles(w: Array, y: Array | None = None) -> Array:
    """w u8 [R, I, 528] -> y bf16 bits [8 I, 128 R]."""
    return dequantise_int4_group128(*untile("int4", w), y)
