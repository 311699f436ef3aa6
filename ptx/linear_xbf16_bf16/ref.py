"""Reference of `linear_xbf16_bf16`, in the dtype of `y`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, widen_bf16


def linear_xbf16_bf16(x: Array, w: Array, y: Array | None = None) -> Array:
    """x bf16 bits [T, K], w bf16 bits [N, K] -> y [T, N], float64 when it is not given."""
    if y is None:
        y = np.empty((len(x), len(w)), np.float64)
    tokens, wide = (widen_bf16(bits).astype(y.dtype) for bits in (x, w))
    # One matrix-vector product for each row, so that rounding does not depend on T.
    np.matmul(wide[None], tokens[:, :, None], out=y[:, :, None])
    return y
