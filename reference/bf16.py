"""Owns the BF16 grid: rounding to it and its 16-bit words, for values held as float64.

Rounding goes straight from float64 to BF16. Passing through float32 would round twice and differ on
midpoints. Nothing here knows where a model rounds: that is `rounding.py`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SIGNIFICAND_BITS = 8
# Spacing of the subnormal BF16 numbers, 2^-126 / 2^7.
MIN_EXPONENT = -133
MAX_FINITE = 255.0 * 2.0**120


def round_bf16(x: Array) -> Array:
    """x, any shape -> the nearest BF16 values as float64; ties to even, overflow to infinity."""
    x = np.asarray(x, dtype=np.float64)
    _, exponent = np.frexp(x)
    step = np.maximum(exponent - SIGNIFICAND_BITS, MIN_EXPONENT)
    rounded = np.ldexp(np.rint(np.ldexp(x, -step)), step)
    return np.where(np.abs(rounded) > MAX_FINITE, np.copysign(np.inf, x), rounded)


def to_bits(x: Array) -> npt.NDArray[np.uint16]:
    """x, any shape -> BF16 words after rounding as `round_bf16` does; NaN becomes 0x7FC0."""
    rounded = round_bf16(x)
    # Exact: every BF16 value is a float32 with sixteen low zero bits.
    words = (np.ascontiguousarray(rounded, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.where(np.isnan(rounded), np.uint16(0x7FC0), words)


def from_bits(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """BF16 words uint16, any shape -> their exact values as float32."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)
