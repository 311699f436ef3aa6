"""Reference of `linear_e4m3`, in the dtype of the scales. The contract is in `op.py`."""

import numpy as np

from ptx.fp8 import widen_e4m3
from ptx.numerics import Array


def linear_e4m3(
    x_codes: Array, x_scales: Array, w_codes: Array, w_scales: Array, y: Array | None = None
) -> Array:
    """x_codes e4m3 bits [T, K], x_scales [T], w_codes [N, K], w_scales [N] -> y [T, N]."""
    dtype = x_scales.dtype
    x, w = widen_e4m3(x_codes).astype(dtype), widen_e4m3(w_codes).astype(dtype)
    if y is None:
        y = np.empty((len(x), len(w)), dtype)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    np.matmul(w[None], x[:, :, None], out=y[:, :, None])
    y *= x_scales[:, None]
    y *= w_scales
    return y
