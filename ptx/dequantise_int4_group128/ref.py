"""Reference of `dequantise_int4_group128`, in bits. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, round_to_bf16, scale_groups, unpack_int4


def dequantise_int4_group128(codes: Array, scales: Array, w: Array | None = None) -> Array:
    """codes u8 [N, J], scales bf16 bits [N, R] -> w bf16 bits [N, 2 J]."""
    bits = round_to_bf16(scale_groups(unpack_int4(codes), scales, np.dtype(np.float32)))
    if w is None:
        return bits
    w[...] = bits
    return w
