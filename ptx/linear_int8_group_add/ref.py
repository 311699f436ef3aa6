"""Reference of `linear_int8_group_add`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, widen_bf16


def linear_int8_group_add(x: Array, codes: Array, scales: Array, h: Array) -> None:
    """x [T, K], codes i8 [N, K], scales bf16 bits [N, K / 128], h [T, N] updated in place."""
    wide = codes.astype(x.dtype) * np.repeat(widen_bf16(scales).astype(x.dtype), 128, axis=1)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    h += np.matmul(wide[None], x[:, :, None])[:, :, 0]
