"""Reference of `causal_attention_gated`, in the dtype of `q`. The contract is in `op.py`."""

import numpy as np

from ptx.causal_attention.ref import causal_attention
from ptx.numerics import Array, round_to_bf16


def causal_attention_gated(
    q: Array,
    gate: Array,
    k_pages: Array,
    v_pages: Array,
    pages: Array,
    starts: Array,
    first: Array,
    y: Array | None = None,
) -> Array:
    """q, gate [T, H, E], bf16 pages -> bf16 bits y [T, H, E], or unrounded without y."""
    wide = causal_attention(q, k_pages, v_pages, pages, starts, first)
    # exp overflows to infinity for very negative gates, and a / infinity is the right 0.
    with np.errstate(over="ignore"):
        wide /= 1 + np.exp(-gate)
    if y is None:
        return wide
    y[...] = round_to_bf16(wide)
    return y
