"""Reference of `qgate_norm_rope_append_kv`, in the dtype of `qg`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def qgate_norm_rope_append_kv(
    qg: Array,
    k: Array,
    v: Array,
    w_q: Array,
    w_k: Array,
    positions: Array,
    slots: Array,
    inv_freq: Array,
    q: Array,
    gate: Array,
    k_cache: Array,
    v_cache: Array,
    eps: float,
) -> None:
    """qg [T, H, 2E] -> q, gate [T, H, E]; k, v [T, G, E] -> rows `slots` of caches [C, G, E]."""
    d_head = k.shape[-1]
    # f64: at position 262,143 a float32 angle is off by up to 1.6e-2.
    angle = positions[:, None, None] * inv_freq.astype(np.float64)
    cos = np.cos(angle).astype(qg.dtype)
    sin = np.sin(angle).astype(qg.dtype)
    q[...] = _rotated(_normed(qg[..., :d_head], w_q, eps), cos, sin)
    gate[...] = qg[..., d_head:]
    k_cache[slots] = _rotated(_normed(k, w_k, eps), cos, sin)
    v_cache[slots] = v


def _normed(x: Array, w: Array, eps: float) -> Array:
    """x [T, heads, E], zero-centred w [E] -> a new contiguous array like x."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    y: Array = x / np.sqrt(mean_square + x.dtype.type(eps))
    y *= 1 + w
    return y


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    """x [T, heads, E] with its first 2J components turned in place; cos and sin [T, 1, J]."""
    n_pairs = cos.shape[-1]
    first = x[..., :n_pairs].copy()
    second = x[..., n_pairs : 2 * n_pairs].copy()
    x[..., :n_pairs] = first * cos - second * sin
    x[..., n_pairs : 2 * n_pairs] = second * cos + first * sin
    return x
