"""Owns splitmix64 in numpy: the random words that the fill ops write and their references share.

It must not know ops. Each word is a function of (seed, index), so that any part of a sequence can
be made alone. For synthetic data, never for cryptography.
"""

import numpy as np

from ptx.numerics import Array

STEP = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def joined(lo: int, hi: int) -> int:
    """The 64-bit number of two halves: a launch takes scalars of up to 32 bits."""
    return hi << 32 | lo


def words(seed: int, start: int, n_words: int) -> Array:
    """Words start .. start + n_words - 1 of a 64-bit seed, u64; all arithmetic is mod 2^64."""
    z = np.arange(n_words, dtype=np.uint64)
    # The index plus one, in an array even where it wraps: numpy warns of scalars that do.
    z += np.uint64(start)
    z += np.uint64(1)
    z *= STEP
    z += np.uint64(seed)
    z ^= z >> np.uint64(30)
    z *= MIX_1
    z ^= z >> np.uint64(27)
    z *= MIX_2
    z ^= z >> np.uint64(31)
    return z
