"""Reference of `argmax`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def argmax(logits: Array, ids: Array | None = None) -> Array:
    """logits [T, V] -> ids i32 [T]."""
    if ids is None:
        ids = np.empty(len(logits), np.int32)
    # numpy takes the first of equals, and the first NaN of a row that has one.
    ids[...] = np.argmax(logits, axis=-1)
    ids[np.isnan(logits[np.arange(len(logits)), ids])] = -1
    return ids
