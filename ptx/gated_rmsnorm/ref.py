"""Reference of `gated_rmsnorm`, in the dtype of `o`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def gated_rmsnorm(o: Array, z: Array, w: Array, eps: float, y: Array | None = None) -> Array:
    """o, z [T, Nv, Dv], w [Dv] -> y [T, Nv, Dv]."""
    # numpy sums a contiguous axis head by head in an order that depends on Dv alone.
    mean_square = np.mean(o * o, axis=-1, keepdims=True)
    normed = o / np.sqrt(mean_square + o.dtype.type(eps))
    normed *= w
    # exp overflows to infinity for very negative gates, and z / infinity is the right 0.
    with np.errstate(over="ignore"):
        silu = z / (1 + np.exp(-z))
    y = np.multiply(normed, silu, out=y)
    return y
