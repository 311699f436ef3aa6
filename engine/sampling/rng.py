"""Owns the random words of a request: splitmix64, addressed by seed and draw index.

Each word is a function of (seed, index), so the whole state is the number of words drawn. For
sampling, never for cryptography. Knows nothing of logits.
"""

import os

from engine.errors import RuntimeFailure

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def word(seed: int, index: int) -> int:
    """The 64-bit word of draw `index` (from 0) under a 64-bit `seed`."""
    z = (seed + (index + 1) * _STEP) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def uniform(random_word: int) -> float:
    """The top 53 bits of a word as a float in [0, 1 - 2^-53]."""
    return (random_word >> 11) * 2.0**-53


def system_seed() -> int:
    """Eight bytes of the operating system as a seed; RuntimeFailure when it has none to give."""
    try:
        entropy = os.urandom(8)
    except (OSError, NotImplementedError) as error:
        raise RuntimeFailure(f"seed: the operating system gave no entropy ({error})") from error
    if len(entropy) != 8:
        raise RuntimeFailure(f"seed: the operating system gave {len(entropy)} bytes of 8")
    return int.from_bytes(entropy, "little")
