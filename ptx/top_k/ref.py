"""Reference of `top_k`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def top_k(logits: Array, values: Array, ids: Array, work: Array) -> None:
    """logits [T, V] -> values [T, K], ids i32 [T, K]; work [T, W] zeros, left alone."""
    for t, row in enumerate(logits):
        if np.isnan(row).any():
            ids[t], values[t] = -1, 0
            continue
        # A stable sort keeps equal cells in increasing id.
        ids[t] = np.argsort(-row, kind="stable")[: ids.shape[1]]
        values[t] = row[ids[t]] + 0.0
