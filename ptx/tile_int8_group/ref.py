"""Reference of `tile_int8_group`. The contract is in `op.py`."""

from ptx.numerics import Array
from ptx.weight_tiles import tile


def tile_int8_group(codes: Array, scales: Array, w: Array) -> None:
    """codes i8 [N, K], scales bf16 bits [N, R] into tiles w u8 [R, I, Q]."""
    w[...] = tile("int8", codes, scales)
