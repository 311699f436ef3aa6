"""Reference of `linear_int4_group128`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, widen_bf16


def linear_int4_group128(x: Array, codes: Array, scales: Array, y: Array | None = None) -> Array:
    """x [T, K], codes u8 [N, K / 2], scales bf16 bits [N, K / 128] -> y [T, N]."""
    pairs = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    # Two's complement of four bits: 8 .. 15 are -8 .. -1.
    q = (pairs ^ 8).astype(x.dtype) - 8
    wide = q * np.repeat(widen_bf16(scales).astype(x.dtype), 128, axis=1)
    if y is None:
        y = np.empty((len(x), len(wide)), x.dtype)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    np.matmul(wide[None], x[:, :, None], out=y[:, :, None])
    return y
