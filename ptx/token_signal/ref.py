"""Reference of `token_signal`, in the dtype of `logits`. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array

# exp(-1000) is zero, and -1000 times zero too, where -infinity times zero is NaN.
LOWEST = -1000


def token_signal(logits: Array, ids: Array, values: Array) -> None:
    """logits [T, V] -> ids i32 [T, 2], values [T, 4]."""
    # Row by row, so that no sum can know how many rows there are.
    for t, row in enumerate(logits):
        ids[t], values[t] = _signal(row)


def _signal(row: Array) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """The two best ids of a row [V], and its four values."""
    # numpy takes the first of equals, and the first NaN of a row that has one.
    best = int(np.argmax(row))
    if not np.isfinite(row[best]):
        return (-1, -1), (0.0, 0.0, 0.0, 0.0)
    others = np.delete(row, best)
    second = int(np.argmax(others))
    margin = float(row[best]) - float(others[second])
    d = np.maximum(others - row[best], LOWEST)
    weights = np.exp(d).astype(np.float64)
    # S without the 1 of the best itself: ln(1 + rest) keeps the digits of a small rest.
    rest = float(weights.sum())
    moment = float((weights * d).sum())
    log_total = float(np.log1p(rest))
    values = (log_total - moment / (1 + rest), -log_total, -margin - log_total, margin)
    return (best, second + (second >= best)), values
