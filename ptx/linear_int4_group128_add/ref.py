"""Reference of `linear_int4_group128_add`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, widen_bf16


def linear_int4_group128_add(x: Array, codes: Array, scales: Array, h: Array) -> None:
    """x [T, K], codes u8 [N, K / 2], scales bf16 bits [N, K / 128], h [T, N] updated in place."""
    pairs = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    # Two's complement of four bits: 8 .. 15 are -8 .. -1.
    q = (pairs ^ 8).astype(x.dtype) - 8
    wide = q * np.repeat(widen_bf16(scales).astype(x.dtype), 128, axis=1)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    h += np.matmul(wide[None], x[:, :, None])[:, :, 0]
