"""Reference of `linear_xbf16_bf16_swiglu`: float64, or float32 rounded to bf16 once.

The contract is in `op.py`.
"""

import numpy as np

from ptx.linear_xbf16_bf16.ref import linear_xbf16_bf16
from ptx.numerics import Array, round_to_bf16
from ptx.swiglu.ref import swiglu


def linear_xbf16_bf16_swiglu(x: Array, w: Array, y: Array | None = None) -> Array:
    """x bf16 bits [T, K], w bf16 bits [2 F, K] -> y bf16 bits [T, F], float64 when not given."""
    dtype = np.float64 if y is None else np.float32
    # Two products, because among other rows a row of the weight may have other bits.
    gate, up = (
        linear_xbf16_bf16(x, half, np.empty((len(x), len(half)), dtype)) for half in np.split(w, 2)
    )
    exact = swiglu(gate, up)
    if y is None:
        return exact
    y[...] = round_to_bf16(exact)
    return y
