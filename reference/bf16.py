"""Owns the BF16 grid: rounding to it and its 16-bit words, for values held as float64.

Rounding goes straight from float64 to BF16. Passing through float32 would round twice and differ on
midpoints. Nothing here knows where a model rounds: that is `rounding.py`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Fraction bits that float64 has and BF16 has not.
EXTRA_BITS = 45
HALF, LOW_BITS = np.uint64((1 << 44) - 1), np.uint64((1 << EXTRA_BITS) - 1)
MIN_NORMAL, SUBNORMAL_STEP = 2.0**-126, 2.0**-133
MAX_FINITE = 255.0 * 2.0**120


def round_bf16(x: Array) -> Array:
    """x, any shape -> the nearest BF16 values as float64; ties to even, overflow to infinity."""
    x = np.asarray(x, dtype=np.float64, order="C")
    bits = x.view(np.uint64)
    # Half a step less one, plus the last kept bit: a carry then means up, and ties go to even.
    carried = bits + (HALF + ((bits >> np.uint64(EXTRA_BITS)) & np.uint64(1)))
    rounded = (carried & ~LOW_BITS).view(np.float64)
    small, large = np.abs(x) < MIN_NORMAL, np.abs(rounded) > MAX_FINITE
    rounded[small] = np.rint(x[small] / SUBNORMAL_STEP) * SUBNORMAL_STEP
    rounded[large] = np.copysign(np.inf, x[large])
    # A carry out of a NaN's fraction would make it a number.
    rounded[np.isnan(x)] = np.nan
    return rounded


def to_bits(x: Array) -> npt.NDArray[np.uint16]:
    """x, any shape -> BF16 words after rounding as `round_bf16` does; NaN becomes 0x7FC0."""
    rounded = round_bf16(x)
    # Exact: every BF16 value is a float32 with sixteen low zero bits.
    words = (np.ascontiguousarray(rounded, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.where(np.isnan(rounded), np.uint16(0x7FC0), words)


def from_bits(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """BF16 words uint16, any shape -> their exact values as float32."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)
