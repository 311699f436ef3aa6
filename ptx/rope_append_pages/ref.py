"""Reference of `rope_append_pages`, in the dtype of `q`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, round_to_bf16
from ptx.rope_append_kv.ref import rope_append_kv


def rope_append_pages(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    slots: Array,
    inv_freq: Array,
    k_pages: Array,
    v_pages: Array,
    interleaved: bool,
) -> None:
    """q [T, H, E] rotated in place; k, v [T, G, E] into bf16 rows `slots` of [P, G, B, E]."""
    turned, kept = np.empty_like(k), np.empty_like(v)
    rope_append_kv(q, k, v, positions, np.arange(len(k)), inv_freq, turned, kept, interleaved)
    page, row = np.divmod(slots, k_pages.shape[2])
    k_pages[page, :, row] = round_to_bf16(turned)
    v_pages[page, :, row] = round_to_bf16(kept)
