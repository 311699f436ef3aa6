"""Owns the sampler version `host-binary64-cdf-1`: softmax(logits / T) over the whole vocabulary.

Everything is binary64, in increasing token id, one running sum; nothing is masked or cut. The
exponential is numpy's, whose last bit may differ between processors, so `numerics` names it for a
replay record. Knows no config fields beyond the temperature; the random word comes as `u`.
"""

import functools
import hashlib
import math

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidArgument, RuntimeFailure

VERSION = "host-binary64-cdf-1"
_EXCESS = 1e-12

Float64 = npt.NDArray[np.float64]


def draw(z: Float64, temperature: float, u: float) -> tuple[int, float]:
    """Index drawn from softmax(z / temperature) by `u`, and its natural-log probability.

    z float64 [N], finite, N >= 1; temperature > 0; u in [0, 1).
    """
    # A tiny temperature may push z / T past the largest double; -inf is then the right exponent.
    with np.errstate(over="ignore", under="ignore"):
        exponents = (z - z.max()) / temperature
        weights = np.exp(exponents)
    running = np.cumsum(weights)
    total = float(running[-1])
    if not (math.isfinite(total) and total >= 1.0):
        raise RuntimeFailure(f"sampler: the weights sum to {total}, needs a finite sum from 1 up")
    index = select(weights, running, u)
    return index, float(exponents[index]) - math.log(total)


def select(weights: Float64, running: Float64, u: float) -> int:
    """First index of positive weight whose running sum is strictly above u times the total.

    weights, running float64 [N]; `running` is the left-to-right sum of `weights`.
    """
    if not 0.0 <= u < 1.0:
        raise InvalidArgument(f"sampler: u is {u}, needs 0 <= u < 1")
    total = float(running[-1])
    target = u * total
    if target > total * (1.0 + _EXCESS):
        raise RuntimeFailure(f"sampler: target {target} lies above the total {total}")
    index = int(np.searchsorted(running, target, side="right"))
    if index < running.shape[0]:
        return index
    return int(np.flatnonzero(weights)[-1])


def log_p_model(logits: npt.NDArray[np.float32], token: int) -> float:
    """Natural-log softmax of raw `logits` float32 [V] at `token`: no temperature, no filter."""
    z = logits.astype(np.float64)
    z -= z.max()
    with np.errstate(under="ignore"):
        return float(z[token]) - math.log(float(np.cumsum(np.exp(z))[-1]))


@functools.cache
def numerics() -> str:
    """The numpy version and a digest of its exponential here: equal texts replay bit for bit."""
    with np.errstate(under="ignore"):
        exponentials = np.exp(np.linspace(-745.0, 0.0, 4099))
    digest = hashlib.sha256(exponentials.tobytes()).hexdigest()[:16]
    return f"numpy {np.__version__} exp {digest}"
