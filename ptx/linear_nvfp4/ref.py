"""Reference of `linear_nvfp4`, in the dtype of the global scales. The contract is in `op.py`."""

import numpy as np

from ptx.fp8 import widen_e4m3
from ptx.numerics import Array
from ptx.nvfp4 import BLOCK, untile_scales, widen_e2m1


def linear_nvfp4(
    x_codes: Array, x_scales: Array, x_global: Array, w_codes: Array, w_tiles: Array,
    w_global: Array, y: Array | None = None,
) -> Array:
    """Codes u8 [T, J] and [N, J], scales e4m3 bits [T, J / 8] and in tiles [I, J / 32, 512], global
    scales [1] -> y [T, N]."""
    dtype = x_global.dtype
    x = _widened(x_codes, x_scales, dtype)
    w = _widened(w_codes, untile_scales(w_tiles, len(w_codes)), dtype)
    if y is None:
        y = np.empty((len(x), len(w)), dtype)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    np.matmul(w[None], x[:, :, None], out=y[:, :, None])
    y *= 1 / (x_global * w_global)
    return y


def _widened(pairs: Array, scales: Array, dtype: np.dtype[np.generic]) -> Array:
    """[N, K] of codes u8 [N, K / 2] and scales e4m3 [N, K / 16]; exact in float32."""
    wide: Array = np.repeat(widen_e4m3(scales).astype(dtype), BLOCK, axis=1)
    wide *= widen_e2m1(pairs)
    return wide
