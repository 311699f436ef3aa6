"""Reference of `untile_int4_group128`. The contract is in `op.py`."""

from ptx.numerics import Array
from ptx.weight_tiles import untile


def untile_int4_group128(w: Array, codes: Array, scales: Array) -> None:
    """codes u8 [N, J], scales bf16 bits [N, R] out of tiles w u8 [R, I, Q]."""
    codes[...], scales[...] = untile("int4", w)
