"""Owns what a run says of its weights: whether activations and logits are like a trained model's.

A comparison on logits that are flat, or on a residual stream that dies or explodes, says little.
"""

import numpy as np

from engine.parity.judge import ROWS
from engine.parity.records import F32, Report, Trace

QUARTILES = (10, 25, 50, 75, 90)


def seen_of(trace: Trace) -> Report:
    """Sizes of the residual stream by place; spread, entropy and lead of the best of the logits."""
    stream = [
        {"place": "embedding" if key == 0 else f"layer {key - 1}",
         "rms": float(np.sqrt(np.mean(rows.astype(np.float64) ** 2))),
         "largest": float(np.abs(rows).max())}
        for key, rows in sorted(trace.hidden.items())
    ]
    leads, entropies, deviations = zip(*map(_row, _each(trace.logits)), strict=True)
    return {
        "stream": stream,
        "logit_deviation": float(np.mean(deviations)),
        "largest_logit": float(trace.logits.max()),
        "entropy_nats": float(np.mean(entropies)),
        "lead_percentiles": {
            str(at): float(value)
            for at, value in zip(QUARTILES, np.percentile(leads, QUARTILES), strict=True)
        },
    }


def _each(logits: F32) -> list[F32]:
    # Every few rows: a row of 248,320 costs milliseconds.
    return list(logits[:: max(1, len(logits) // (4 * ROWS))])


def _row(row: F32) -> tuple[float, float, float]:
    """Lead of the best, softmax entropy in nats, standard deviation."""
    wide = row.astype(np.float64)
    second, best = np.partition(wide, -2)[-2:]
    weights = np.exp(wide - best)
    total = weights.sum()
    entropy = np.log(total) - float((wide - best) @ weights) / total
    return float(best - second), float(entropy), float(wide.std())
