"""Reference of `qgate_norm_rope_append_pages`, in the dtype of `qg`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array, round_to_bf16
from ptx.qgate_norm_rope_append_kv.ref import qgate_norm_rope_append_kv


def qgate_norm_rope_append_pages(
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
    k_pages: Array,
    v_pages: Array,
    eps: float,
) -> None:
    """qg [T, H, 2E] -> q, gate [T, H, E]; k, v [T, G, E] -> bf16 rows `slots` of [P, G, B, E]."""
    turned, kept = np.empty_like(k), np.empty_like(v)
    qgate_norm_rope_append_kv(
        qg, k, v, w_q, w_k, positions, np.arange(len(k)), inv_freq, q, gate, turned, kept, eps
    )
    page, row = np.divmod(slots, k_pages.shape[2])
    k_pages[page, :, row] = round_to_bf16(turned)
    v_pages[page, :, row] = round_to_bf16(kept)
