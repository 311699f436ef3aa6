"""Reference of `fill_uniform`, in float32 whatever `y` is. The contract is in `op.py`."""

import numpy as np

from ptx.numerics import Array
from ptx.splitmix64 import joined, words


def fill_uniform(
    y: Array, seed_lo: int, seed_hi: int, start_lo: int, start_hi: int, low: float, high: float
) -> None:
    """Numbers from `low` to `high` into y [N]."""
    random = words(joined(seed_lo, seed_hi), joined(start_lo, start_hi), len(y))
    u = (random >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    u *= np.float32(high) - np.float32(low)
    u += np.float32(low)
    y[...] = u
