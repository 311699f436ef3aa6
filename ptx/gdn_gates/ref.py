"""Reference of `gdn_gates`, in the dtype of `a`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def gdn_gates(a: Array, b: Array, a_log: Array, dt_bias: Array, g: Array, beta: Array) -> None:
    """a, b [T, Nv], a_log, dt_bias [Nv] -> g, beta [T, Nv]."""
    x = a + dt_bias
    # exp of a negative number only, so that large x stay finite and small ones keep their digits.
    softplus = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    np.multiply(-np.exp(a_log), softplus, out=g)
    # exp overflows to infinity for very negative b, and 1 / infinity is the right 0.
    with np.errstate(over="ignore"):
        np.divide(1, 1 + np.exp(-b), out=beta)
