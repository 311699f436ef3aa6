"""Reference of `linear_int4_group128_swiglu`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.linear_int4_group128.ref import linear_int4_group128
from ptx.numerics import Array
from ptx.swiglu.ref import swiglu


def linear_int4_group128_swiglu(
    x: Array, codes: Array, scales: Array, y: Array | None = None
) -> Array:
    """x [T, K], codes u8 [2 F, K / 2], scales bf16 bits [2 F, K / 128] -> y [T, F]."""
    # Two products, because among other rows a row of the weight may have other bits.
    halves = zip(np.split(codes, 2), np.split(scales, 2), strict=True)
    gate, up = (linear_int4_group128(x, *half) for half in halves)
    return swiglu(gate, up, y)
