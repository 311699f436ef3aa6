"""Reference of `linear_int8_group_swiglu`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.linear_int8_group.ref import linear_int8_group
from ptx.numerics import Array
from ptx.swiglu.ref import swiglu


def linear_int8_group_swiglu(
    x: Array, codes: Array, scales: Array, y: Array | None = None
) -> Array:
    """x [T, K], codes i8 [2 F, K], scales bf16 bits [2 F, K / 128] -> y [T, F]."""
    # Two products, because among other rows a row of the weight may have other bits.
    halves = zip(np.split(codes, 2), np.split(scales, 2), strict=True)
    gate, up = (linear_int8_group(x, *half) for half in halves)
    return swiglu(gate, up, y)
