"""Reference of `adjust_logits`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array


def adjust_logits(
    logits: Array,
    counts: Array,
    mask: Array,
    bias_ids: Array,
    bias: Array,
    repeat: Array,
    frequency: Array,
    presence: Array,
    z: Array | None = None,
) -> Array:
    """logits, counts [T, V], mask [T, W], bias_ids, bias [T, B], the rest [T] -> z f64 [T, V]."""
    if z is None:
        z = np.empty(logits.shape)
    tokens = np.arange(logits.shape[1])
    z[...] = logits
    z[(mask[:, tokens // 32] >> (tokens % 32).astype(np.uint32)) & 1 == 0] = -np.inf
    is_on = (repeat != 1) | (frequency != 0) | (presence != 0)
    repeat, frequency, presence = repeat[:, None], frequency[:, None], presence[:, None]
    penalised = np.where(z > 0, z / repeat, z * repeat) - counts * frequency - presence
    np.copyto(z, penalised, where=(counts > 0) & is_on[:, None])
    for row, ids, values in zip(z, bias_ids, bias, strict=True):
        for token, value in zip(ids, values, strict=True):
            if token >= 0:
                row[token] += value
    z[~np.isfinite(logits)] = np.nan
    return z
