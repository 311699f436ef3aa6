"""Reference of `linear_bf16`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, widen_bf16


def linear_bf16(x: Array, w: Array, y: Array | None = None) -> Array:
    """x [T, K], w bf16 bits [N, K] -> y [T, N]."""
    wide = widen_bf16(w).astype(x.dtype)
    if y is None:
        y = np.empty((len(x), len(wide)), x.dtype)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    np.matmul(wide[None], x[:, :, None], out=y[:, :, None])
    return y
