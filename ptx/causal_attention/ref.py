"""Reference of `causal_attention`, in the dtype of `q`. The contract is in `op.py`.

Each row is computed alone, in shapes that its position sets.
"""

import math

import numpy as np

from ptx.numerics import Array, round_to_bf16, widen_bf16


def causal_attention(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    pages: Array,
    starts: Array,
    first: Array,
    y: Array | None = None,
) -> Array:
    """q [T, H, E], bf16 bits [P, G, B, E] of both pages -> bf16 bits y, or unrounded without y."""
    n_tokens, n_heads, d_head = q.shape
    n_kv_heads = k_pages.shape[1]
    grouped = q.reshape(n_tokens, n_kv_heads, n_heads // n_kv_heads, d_head)
    result = np.empty_like(grouped)
    borders = starts.tolist()
    for seq, position in enumerate(first.tolist()):
        n_rows = borders[seq + 1] - borders[seq]
        k, v = (_cells(held, pages[seq], position + n_rows, q.dtype) for held in (k_pages, v_pages))
        for i in range(n_rows):
            n = position + i + 1
            weight = grouped[borders[seq] + i] @ k[:, :n].swapaxes(1, 2)
            weight /= q.dtype.type(math.sqrt(d_head))
            weight -= weight.max(axis=-1, keepdims=True)
            np.exp(weight, out=weight)
            weight /= weight.sum(axis=-1, keepdims=True)
            result[borders[seq] + i] = weight @ v[:, :n]
    wide = result.reshape(q.shape)
    if y is None:
        return wide
    y[...] = round_to_bf16(wide)
    return y


def _cells(held: Array, pages: Array, n_cells: int, dtype: np.dtype[np.floating]) -> Array:
    """The first cells of a sequence: [G, n_cells, E]."""
    d_page = held.shape[2]
    taken = widen_bf16(held[pages[: -(-n_cells // d_page)]]).astype(dtype)
    n_pages, n_kv_heads, _, d_head = taken.shape
    rows: Array = taken.swapaxes(0, 1).reshape(n_kv_heads, n_pages * d_page, d_head)
    return rows[:, :n_cells]
