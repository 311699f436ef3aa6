"""Reference of `linear_bf16_add`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, widen_bf16


def linear_bf16_add(x: Array, w: Array, h: Array) -> None:
    """x [T, K], w bf16 bits [N, K], h [T, N] updated in place."""
    wide = widen_bf16(w).astype(x.dtype)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    h += np.matmul(wide[None], x[:, :, None])[:, :, 0]
