"""Reference of `linear_add`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def linear_add(x: Array, w: Array, h: Array) -> None:
    """x [T, K], w [N, K], h [T, N] updated in place."""
    # One matrix-vector product for each row, so that rounding does not depend on T.
    h += np.matmul(w[None], x[:, :, None])[:, :, 0]
