"""Reference of `paged_attention`, in the dtype of `q`. The contract is in `op.py`.

Each token is computed alone, in shapes that depend on its position only, so its bits do not
depend on the other tokens, on the sequence, or on where the sequence's pages lie.
"""

import math

import numpy as np

from ptx.numerics import Array, round_to_bf16, widen_bf16


def paged_attention(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    pages: Array,
    seq_of_token: Array,
    positions: Array,
    y: Array | None = None,
    parts: Array | None = None,
    peaks: Array | None = None,
    arrived: Array | None = None,
) -> Array:
    """q [T, H, E], pages bf16 bits [P, G, B, E] named by i32 [S, W], the rest i32 [T].

    Gives y [T, H, E]: bf16 bits in `y`, or unrounded in the dtype of `q` without it. The scratch
    and `arrived` are left alone.
    """
    attended = attend(q, k_pages, v_pages, pages, seq_of_token, positions)
    if y is None:
        return attended
    y[:] = round_to_bf16(attended)
    return y


def attend(
    q: Array, k_pages: Array, v_pages: Array, pages: Array, seq_of_token: Array, positions: Array
) -> Array:
    """The sums [T, H, E] before any rounding to bf16."""
    n_tokens, n_heads, d_head = q.shape
    n_kv_heads, n_cells = k_pages.shape[1:3]
    out = np.empty_like(q)
    for token in range(n_tokens):
        n_visible = int(positions[token]) + 1
        ids = pages[int(seq_of_token[token]), : -(-n_visible // n_cells)]
        k, v = (_visible(cache, ids, n_visible).astype(q.dtype) for cache in (k_pages, v_pages))
        grouped = q[token].reshape(n_kv_heads, n_heads // n_kv_heads, d_head)
        weight = np.matmul(grouped, k.transpose(0, 2, 1)) / q.dtype.type(math.sqrt(d_head))
        weight -= weight.max(axis=-1, keepdims=True)
        np.exp(weight, out=weight)
        weight /= weight.sum(axis=-1, keepdims=True)
        out[token] = np.matmul(weight, v).reshape(n_heads, d_head)
    return out


def _visible(cache: Array, ids: Array, n_visible: int) -> Array:
    """Cells [G, n, E] in float32 of a sequence, from bf16 pages [P, G, B, E]."""
    cells = np.take(cache, ids, axis=0).transpose(1, 0, 2, 3)
    n_kv_heads, _, _, d_head = cells.shape
    return widen_bf16(cells.reshape(n_kv_heads, -1, d_head)[:, :n_visible])
