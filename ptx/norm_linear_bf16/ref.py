"""Reference of `norm_linear_bf16`, in the dtype of `x`. The contract is in `op.py`."""

import numpy as np

from ptx.linear_xbf16_bf16.ref import linear_xbf16_bf16
from ptx.numerics import Array, round_to_bf16


def norm_linear_bf16(
    x: Array, gain: Array, w: Array, eps: float, offset: float, y: Array | None = None
) -> Array:
    """x f32 [T, K], gain f32 [K], w bf16 bits [N, K] -> y [T, N]."""
    # Both roundings to float32 are the contract's, whatever the dtype of the sums.
    gains = (gain + np.asarray(offset, gain.dtype)).astype(np.float32)
    scaled = round_to_bf16(x.astype(np.float32) * gains)
    p = linear_xbf16_bf16(scaled, w, np.empty((len(x), len(w)), x.dtype))
    p /= np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.asarray(eps, x.dtype))
    if y is None:
        return p
    y[...] = p
    return y
