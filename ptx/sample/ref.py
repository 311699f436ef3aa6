"""Reference of `sample`, row by row, by a sort. The contract is in `op.py`."""

import math

import numpy as np

from ptx.numerics import Array
from ptx.sample.op import LEAST_EXPONENT, LN2_HIGH, LN2_LOW, PER_LN2, WEIGHT_BITS
from ptx.splitmix64 import words

CORRUPT, BANNED = -1, -2
LOW_64 = (1 << 64) - 1

# A row's id, the weight of that token, the total, and how many were left.
Choice = tuple[int, int, int, int]


def sample(
    z: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    log_min_p: Array,
    seed: Array,
    draw: Array,
    ids: Array,
    weights: Array,
    n_left: Array,
) -> None:
    """z f64 [T, V], the others [T] -> ids i32 [T], weights i64 [T, 2], n_left i32 [T]."""
    for t, row in enumerate(z):
        ids[t], weights[t, 0], weights[t, 1], n_left[t] = _choice(
            row, temperature[t], top_k[t], top_p[t], log_min_p[t], seed[t], draw[t]
        )


def survivors(z: Array, top_k: int, top_p: float, log_min_p: float) -> Array:
    """Ids, in increasing order, that top-k, top-p and min-p leave of a row z [V]."""
    # A stable sort keeps equal tokens in increasing id.
    ranked = np.argsort(-z, kind="stable")
    ranked = ranked[z[ranked] > -np.inf]
    best = z[ranked[0]]
    if top_k > 0:
        ranked = ranked[:top_k]
    if 0 < top_p < 1:
        running = np.cumsum(weigh(z[ranked] - best))
        total = int(running[-1])
        need = min(math.ceil(top_p * float(total)), total)
        ranked = ranked[: np.searchsorted(running, need, side="left") + 1]
    return np.sort(ranked[z[ranked] >= best + np.fmin(log_min_p, 0.0)])


def weigh(x: Array) -> Array:
    """Integers i64 near 2^44 e^x, for x f64 of 0 or less."""
    x = np.fmax(x, LEAST_EXPONENT)
    n = np.rint(x * PER_LN2)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = np.full_like(x, 1 / math.factorial(13))
    for k in range(12, -1, -1):
        p = p * r + 1 / math.factorial(k)
    scaled = np.ldexp(p, WEIGHT_BITS + n.astype(np.int64))
    weights: Array = np.rint(scaled).astype(np.int64)
    return weights


def _choice(
    z: Array, temperature: float, top_k: int, top_p: float, log_min_p: float, seed: int, draw: int
) -> Choice:
    if np.isnan(z).any() or z.max() == np.inf:
        return CORRUPT, 0, 0, 0
    if z.max() == -np.inf:
        return BANNED, 0, 0, 0
    if not temperature > 0:
        temperature, top_k, top_p, log_min_p = 1.0, 1, 1.0, -np.inf
    left = survivors(z, top_k, top_p, log_min_p)
    weights = weigh((z[left] - z.max()) / temperature)
    running = np.cumsum(weights)
    total = int(running[-1])
    word = int(words(int(seed) & LOW_64, int(draw) & LOW_64, 1)[0])
    at = np.searchsorted(running, word * total >> 64, side="right")
    return int(left[at]), int(weights[at]), total, len(left)
