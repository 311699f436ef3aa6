"""Owns rotary positions: frequencies (plain and YaRN), three-axis tables, and the rotation.

Only the first `d_rotary` components of a head rotate, paired by halves. Positions are an input,
separate from cache slots, because a sequence with images continues at another position.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import Config
from reference.errors import OracleError
from reference.rounding import EXACT, Rounding

Array = npt.NDArray[Any]

# Rotations over the original length between which YaRN goes from untouched to fully stretched.
FAST_ROTATIONS, SLOW_ROTATIONS = 32.0, 1.0


def inv_freq(config: Config) -> tuple[Array, float]:
    """Frequencies [R/2] in radians for each position, and the factor on cosine and sine."""
    pairs = np.arange(config.d_rotary // 2, dtype=np.float64)
    plain = config.theta ** (-2.0 * pairs / config.d_rotary)
    if config.yarn is None:
        return plain, 1.0

    def pair_of(rotations: float) -> float:
        assert config.yarn is not None
        span = math.log(config.yarn.original_positions / (2.0 * math.pi * rotations))
        return config.d_rotary * span / (2.0 * math.log(config.theta))

    low = max(math.floor(pair_of(FAST_ROTATIONS)), 0)
    high = min(math.ceil(pair_of(SLOW_ROTATIONS)), config.d_rotary - 1)
    # A ramp of no width is a step; the small width keeps the quotient defined.
    ramp = np.clip((pairs - low) / max(high - low, 1e-3), 0.0, 1.0)
    factor = config.yarn.factor
    return plain * ((1.0 - ramp) + ramp / factor), 0.1 * math.log(factor) + 1.0


def axes(config: Config) -> npt.NDArray[np.int64]:
    """Which position axis (0 temporal, 1 height, 2 width) each pair reads, int64 [R/2]."""
    pairs = np.arange(config.d_rotary // 2)
    _, height, width = config.mrope_section
    chosen = np.zeros_like(pairs)
    chosen[(pairs % 3 == 1) & (pairs < 3 * height)] = 1
    chosen[(pairs % 3 == 2) & (pairs < 3 * width)] = 2
    return chosen


def triples(positions: Any, n_tokens: int) -> npt.NDArray[np.int64]:
    """Positions [T] or [3, T] -> int64 [3, T]; OracleError for any other shape or for fractions."""
    given = np.asarray(positions)
    if given.shape not in {(n_tokens,), (3, n_tokens)} or given.dtype.kind not in "iu":
        raise OracleError(
            f"positions {given.dtype} {given.shape}, want integers ({n_tokens},) or (3, {n_tokens})"
        )
    return np.broadcast_to(given, (3, n_tokens)).astype(np.int64)


def tables(config: Config, positions: Array, rounding: Rounding = EXACT) -> tuple[Array, Array]:
    """positions int [3, T] -> cosine and sine, each float64 [T, R/2]."""
    frequencies, factor = inv_freq(config)
    frequencies = rounding("inv_freq", frequencies)
    angle = rounding("rope_angle", positions[axes(config)].T * frequencies)
    return (
        rounding("rope_table", np.cos(angle) * factor),
        rounding("rope_table", np.sin(angle) * factor),
    )


def rotate(x: Array, cosine: Array, sine: Array, rounding: Rounding = EXACT) -> Array:
    """x [T, N, E], tables [T, R/2] -> x, components j and j + R/2 rotated, the rest as it is."""
    half = cosine.shape[-1]
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    first, second = x[..., :half], x[..., half : 2 * half]
    y = x.copy()
    y[..., :half] = rounding("rope_product", first * cosine) - rounding(
        "rope_product", second * sine
    )
    y[..., half : 2 * half] = rounding("rope_product", second * cosine) + rounding(
        "rope_product", first * sine
    )
    return y
