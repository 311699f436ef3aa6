"""Reference of `untile_int8_group`. The contract is in `op.py`."""

from ptx.numerics import Array
from ptx.weight_tiles import untile


def untile_int8_group(w: Array, codes: Array, scales: Array) -> None:
    """codes i8 [N, K], scales bf16 bits [N, R] out of tiles w u8 [R, I, Q]."""
    codes[...], scales[...] = untile("int8", w)
