"""Reference of `linear`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def linear(x: Array, w: Array, y: Array | None = None) -> Array:
    """x [T, K], w [N, K] -> y [T, N]."""
    if y is None:
        y = np.empty((x.shape[0], w.shape[0]), x.dtype)
    # One matrix-vector product for each row. `x @ w.T` is one matrix product whose rounding
    # depends on T: KNOWLEDGE/findings/row-invariant-linear.md.
    np.matmul(w[None], x[:, :, None], out=y[:, :, None])
    return y
