"""Reference of `rmsnorm`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def rmsnorm(x: Array, w: Array, eps: float, offset: float, y: Array | None = None) -> Array:
    """x [T, D], w [D] -> y [T, D]."""
    # numpy sums a contiguous axis row by row in an order that depends on D alone.
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    y = np.divide(x, np.sqrt(mean_square + x.dtype.type(eps)), out=y)
    y *= w + x.dtype.type(offset)
    return y
