"""Reference of `paged_attention_gated`, in the dtype of `q`. The contract is in `op.py`.

The sums are those of `paged_attention`'s reference.
"""

import numpy as np

from ptx.numerics import Array, round_to_bf16
from ptx.paged_attention.ref import attend


def paged_attention_gated(
    q: Array,
    gate: Array,
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
    """q, gate [T, H, E], pages bf16 bits [P, G, B, E] named by i32 [S, W], the rest i32 [T].

    Gives y [T, H, E]: bf16 bits in `y`, or unrounded in the dtype of `q` without it. The scratch
    and `arrived` are left alone.
    """
    attended = attend(q, k_pages, v_pages, pages, seq_of_token, positions)
    # e^-|gate| never overflows.
    power = np.exp(-np.abs(gate))
    attended *= np.where(gate >= 0, 1 / (1 + power), power / (1 + power))
    if y is None:
        return attended
    y[:] = round_to_bf16(attended)
    return y
