"""Reference of `sigmoid_gate`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def sigmoid_gate(gate: Array, x: Array) -> None:
    """gate [T, N], x [T, N] updated in place."""
    # exp overflows to infinity for very negative gates, and x / infinity is the right 0.
    with np.errstate(over="ignore"):
        x /= 1 + np.exp(-gate)
