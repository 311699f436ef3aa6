"""Reference of `linear_bf16_swiglu`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.linear_bf16.ref import linear_bf16
from ptx.numerics import Array
from ptx.swiglu.ref import swiglu


def linear_bf16_swiglu(x: Array, w: Array, y: Array | None = None) -> Array:
    """x [T, K], w bf16 bits [2 F, K] -> y [T, F]."""
    # Two products, because among other rows a row of the weight may have other bits.
    gate, up = (linear_bf16(x, half) for half in np.split(w, 2))
    return swiglu(gate, up, y)
