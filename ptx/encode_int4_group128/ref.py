"""Reference of `encode_int4_group128`. The contract is in `op.py`."""

import numpy as np

from ptx.encode_groups import encode_groups
from ptx.numerics import Array


def encode_int4_group128(w: Array, codes: Array, scales: Array, bad: Array) -> None:
    """w [N, K] -> codes u8 [N, K / 2], scales bf16 bits [N, K / 128], bad i32 [N]."""
    q, scales[...], bad[...] = encode_groups(w, 7)
    nibbles = q.view(np.uint8) & 15
    codes[...] = nibbles[:, ::2] | nibbles[:, 1::2] << 4
