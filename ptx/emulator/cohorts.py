"""Owns the order among warps that a seed draws: random cohorts that run one after the other.

It must not know why lanes are ready.
"""

from random import Random

import numpy as np

from ptx.emulator.lanes import WARP
from ptx.numerics import Array

N_COHORTS = 2


class Cohorts:
    """Warps by lot; a cohort goes as far as it can before the next, then lots are drawn anew."""

    def __init__(self, random: Random, n_warps: int) -> None:
        self._random, self._n_warps = random, n_warps
        self._left: list[Array] = []

    def first(self, ready: Array) -> Array:
        """The ready lanes, of which there are some, of the first cohort that has any."""
        while True:
            while self._left:
                mine: Array = ready & self._left[-1]
                if mine.any():
                    return mine
                self._left.pop()
            drawn = np.array([self._random.randrange(N_COHORTS) for _ in range(self._n_warps)])
            self._left = [np.repeat(drawn == n, WARP) for n in range(N_COHORTS)]
