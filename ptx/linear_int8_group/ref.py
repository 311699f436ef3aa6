"""Reference of `linear_int8_group`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, scale_groups


def linear_int8_group(x: Array, codes: Array, scales: Array, y: Array | None = None) -> Array:
    """x [T, K], codes i8 [N, K], scales bf16 bits [N, K / 128] -> y [T, N]."""
    wide = scale_groups(codes, scales, x.dtype)
    if y is None:
        y = np.empty((len(x), len(wide)), x.dtype)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    np.matmul(wide[None], x[:, :, None], out=y[:, :, None])
    return y
