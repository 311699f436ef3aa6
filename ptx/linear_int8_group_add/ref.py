"""Reference of `linear_int8_group_add`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, scale_groups


def linear_int8_group_add(x: Array, codes: Array, scales: Array, h: Array) -> None:
    """x [T, K], codes i8 [N, K], scales bf16 bits [N, K / 128], h [T, N] updated in place."""
    wide = scale_groups(codes, scales, x.dtype)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    h += np.matmul(wide[None], x[:, :, None])[:, :, 0]
