"""Reference of `tile_int4_group128`. The contract is in `op.py`."""

from ptx.numerics import Array
from ptx.weight_tiles import tile


def tile_int4_group128(codes: Array, scales: Array, w: Array) -> None:
    """codes u8 [N, J], scales bf16 bits [N, R] into tiles w u8 [R, I, Q]."""
    w[...] = tile("int4", codes, scales)
