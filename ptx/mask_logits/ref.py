"""Reference of `mask_logits`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def mask_logits(logits: Array, n: int) -> Array:
    """logits f32 [T, V], changed from column `n` on."""
    logits[:, n:] = -np.inf
    return logits
