"""Reference of `rope_append_kv`, in the dtype of `q`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def rope_append_kv(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    slots: Array,
    inv_freq: Array,
    k_cache: Array,
    v_cache: Array,
    interleaved: bool,
) -> None:
    """q [T, H, E] rotated in place; k, v [T, G, E] into rows `slots` of the caches [C, G, E]."""
    # f64: at position 8,191 a float32 angle is off by up to 2.4e-4.
    angle = positions[:, None, None] * inv_freq.astype(np.float64)
    cos = np.cos(angle).astype(q.dtype)
    sin = np.sin(angle).astype(q.dtype)
    q[...] = _rotated(q, cos, sin, interleaved)
    k_cache[slots] = _rotated(k, cos, sin, interleaved)
    v_cache[slots] = v


def _rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """x [T, heads, E], cos and sin [T, 1, E/2] -> a new array like x."""
    first, second = _halves(x, interleaved)
    y = np.empty_like(x)
    y_first, y_second = _halves(y, interleaved)
    y_first[...] = first * cos - second * sin
    y_second[...] = second * cos + first * sin
    return y


def _halves(x: Array, interleaved: bool) -> tuple[Array, Array]:
    """Views of the first and second members of the pairs of x [..., E], each [..., E/2]."""
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]
