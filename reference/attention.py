"""Owns causal attention with grouped key/value heads, in float64.

It must not know projections, gates or rotation; the rows it reads are whatever the cache holds.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from reference.rounding import EXACT, Rounding

Array = npt.NDArray[Any]


def scores(q: Array, k: Array, rounding: Rounding = EXACT) -> Array:
    """q [T, H, E], k [n, G, E], query t being row n - T + t -> [T, H, n], -inf for later rows."""
    n_tokens, n_heads, d_head = q.shape
    n_rows, n_kv_heads, _ = k.shape
    # One matrix product for each key/value head: its query heads, neighbours, stacked over tokens.
    grouped = q.reshape(n_tokens, n_kv_heads, -1, d_head).transpose(1, 0, 2, 3)
    dots = grouped.reshape(n_kv_heads, -1, d_head) @ k.transpose(1, 2, 0)
    scaled = rounding("score", rounding("score_dot", dots) / np.sqrt(d_head))
    scaled = scaled.reshape(n_kv_heads, n_tokens, -1, n_rows).transpose(1, 0, 2, 3)
    last_visible = n_rows - n_tokens + np.arange(n_tokens)
    hidden = np.arange(n_rows)[None, :] > last_visible[:, None]
    return np.where(hidden[:, None, :], -np.inf, scaled.reshape(n_tokens, n_heads, n_rows))


def attend(q: Array, k: Array, v: Array, rounding: Rounding = EXACT) -> tuple[Array, Array]:
    """q [T, H, E]; k, v [n, G, E], own rows last -> weighted values [T, H, E], scores [T, H, n]."""
    s = scores(q, k, rounding)
    weights = np.exp(s - s.max(axis=-1, keepdims=True))
    weights = rounding("weight", weights / weights.sum(axis=-1, keepdims=True))
    n_tokens, _, n_rows = s.shape
    n_kv_heads, d_head = v.shape[1:]
    grouped = weights.reshape(n_tokens, n_kv_heads, -1, n_rows).transpose(1, 0, 2, 3)
    summed = grouped.reshape(n_kv_heads, -1, n_rows) @ v.transpose(1, 0, 2)
    summed = summed.reshape(n_kv_heads, n_tokens, -1, d_head).transpose(1, 0, 2, 3)
    return summed.reshape(q.shape), s
