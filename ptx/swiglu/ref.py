"""Reference of `swiglu`, in the dtype of `gate`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def swiglu(gate: Array, up: Array, y: Array | None = None) -> Array:
    """gate, up [T, F] -> y [T, F]."""
    # exp overflows to infinity for very negative gates, and gate / infinity is the right 0.
    with np.errstate(over="ignore"):
        denominator = np.exp(-gate)
    denominator += 1
    np.divide(gate, denominator, out=denominator)
    return np.multiply(denominator, up, out=y)
