"""Reference of `linear_int8_group`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, widen_bf16


def linear_int8_group(x: Array, codes: Array, scales: Array, y: Array | None = None) -> Array:
    """x [T, K], codes i8 [N, K], scales bf16 bits [N, K / 128] -> y [T, N]."""
    wide = codes.astype(x.dtype) * np.repeat(widen_bf16(scales).astype(x.dtype), 128, axis=1)
    if y is None:
        y = np.empty((len(x), len(wide)), x.dtype)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    np.matmul(wide[None], x[:, :, None], out=y[:, :, None])
    return y
