"""Reference of `linear_xbf16_bf16_add`, in the dtype of `h`. The contract is in `op.py`."""

import numpy as np

from ptx.linear_xbf16_bf16.ref import linear_xbf16_bf16
from ptx.numerics import Array


def linear_xbf16_bf16_add(x: Array, w: Array, h: Array) -> None:
    """x bf16 bits [T, K], w bf16 bits [N, K], h [T, N] updated in place."""
    h += linear_xbf16_bf16(x, w, np.empty_like(h))
