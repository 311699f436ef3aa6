"""Reference of `linear_int4_group128_add`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, scale_groups, unpack_int4


def linear_int4_group128_add(x: Array, codes: Array, scales: Array, h: Array) -> None:
    """x [T, K], codes u8 [N, K / 2], scales bf16 bits [N, K / 128], h [T, N] updated in place."""
    wide = scale_groups(unpack_int4(codes), scales, x.dtype)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    h += np.matmul(wide[None], x[:, :, None])[:, :, 0]
