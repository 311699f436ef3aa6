"""Owns what the references of linear ops over weight tiles share: products, splits, swiglu in bf16.

It must not know which ops exist. The contracts are in their `op.py`.
"""

from typing import Any

import numpy as np

from ptx.numerics import GROUP, Array, round_to_bf16, scale_groups, unpack_int4, widen_bf16
from ptx.swiglu.ref import swiglu
from ptx.weight_tiles import untile


def to_integers(x: Array) -> Array:
    """x [T, K] in whole steps of its group of 128 along K, in its own dtype.

    The step is 2^(E-14), E = floor(log2(m (1 + 2^-7))) of the largest magnitude m in float32, at
    least -100; a cell is at most 32,639 of them.
    """
    groups = x.reshape(len(x), -1, GROUP).astype(np.float32)
    most = np.abs(groups).max(axis=2, keepdims=True) * np.float32(1 + 2**-7)
    exponent = np.maximum(np.frexp(most)[1] - 1, -100)
    exponent[most == 0] = -100
    step = np.ldexp(np.float32(1), exponent - 14)
    whole: Array = (np.rint(groups / step) * step).reshape(x.shape).astype(x.dtype)
    return whole


def product(weight: str, x: Array, w: Array, dtype: Any = np.float64) -> Array:
    """x [T, K], bf16 bits or floats, tiles w u8 [R, I, Q] of `weight` -> [T, 8 I] of `dtype`."""
    codes, scales = untile(weight, w)
    wide = scale_groups(unpack_int4(codes) if weight == "int4" else codes, scales, np.dtype(dtype))
    cells = to_integers(widen_bf16(x) if x.dtype == np.uint16 else x).astype(dtype)
    # One matrix-vector product for each row, so that rounding does not depend on T.
    y: Array = np.matmul(wide[None], cells[:, :, None])[:, :, 0]
    return y


def norm_product(
    weight: str, x: Array, gain: Array, w: Array, eps: float, offset: float
) -> Array:
    """x [T, K], gain [K], tiles w u8 [R, I, Q] -> [T, 8 I] in the dtype of `x`."""
    # Both roundings to float32 are the contract's, whatever the dtype of the sums.
    gains = (gain + np.asarray(offset, gain.dtype)).astype(np.float32)
    mean = np.mean(x * x, axis=1, keepdims=True)
    y: Array = product(weight, x.astype(np.float32) * gains, w, x.dtype)
    y /= np.sqrt(mean + np.asarray(eps, x.dtype))
    return y


def swiglu_bf16(p: Array, y: Array | None) -> Array:
    """swiglu of p [T, 2 F], gate first: into y, bf16 bits [T, F], or unrounded without it."""
    gate, up = np.split(p, 2, axis=1)
    wide: Array = swiglu(gate, up)
    if y is None:
        return wide
    y[...] = round_to_bf16(wide)
    return y


def split(p: Array, *outputs: Array) -> None:
    """The columns of p [T, N], one output after another."""
    borders = np.cumsum([y.shape[1] for y in outputs])[:-1]
    for part, y in zip(np.split(p, borders, axis=1), outputs, strict=True):
        y[...] = part
