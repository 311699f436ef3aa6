"""Reference of `encode_int8_group`. The contract is in `op.py`."""

from ptx.encode_groups import encode_groups
from ptx.numerics import Array


def encode_int8_group(w: Array, codes: Array, scales: Array, bad: Array) -> None:
    """w [N, K] -> codes i8 [N, K], scales bf16 bits [N, K / 128], bad i32 [N]."""
    codes[...], scales[...], bad[...] = encode_groups(w, 127)
