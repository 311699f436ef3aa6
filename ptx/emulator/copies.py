"""Owns one asynchronous copy of some lanes: its bytes, where from, where to, and how far it is.

It must not know instruction syntax, nor when a copy lands: that is `completions.py`.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptx.emulator.memory import Block
from ptx.numerics import Array

# How a copy's end is told: by groups of cp.async, by groups of bulk copies, by an mbarrier.
GROUP, BULK, BARRIER = "cp.async group", "bulk group", "mbarrier"


@dataclass(eq=False)
class Copy:
    """Copies of several lanes, a row of bytes for each; of a box of a tensor, one lane's, its rows.

    `source_at` and `target_at` are byte places [lanes, bytes] in the stores. `inside` tells bytes
    that have a source from those that become zeros, None for all; a copy of zeros alone has no
    `source`. `due` is the tick at which the lots say that it lands, None for as late as is legal.
    `lent` holds while the source must stay as it is.
    """

    how: str
    lanes: Array
    source: Any
    source_at: Array
    target: Any
    target_at: Array
    group: Array
    site: int
    inside: Array | None = None
    barrier_at: int = -1
    number: int = 0
    due: int | None = None
    lent: bool = True
    landed: bool = False
    _read: tuple[Array, Array] | None = None

    def part(self, chosen: Array) -> "Copy":
        """The copies of some of the lanes."""
        read = self._read
        if read is not None:
            read = read[0][chosen], read[1][chosen]
        return replace(
            self, lanes=self.lanes[chosen], source_at=self.source_at[chosen],
            target_at=self.target_at[chosen], group=self.group[chosen],
            inside=None if self.inside is None else self.inside[chosen], _read=read,
        )

    def read(self) -> None:
        """Take the bytes out of the source, once."""
        if self._read is not None:
            return
        if self.source is None:
            shape = self.target_at.shape
            self._read = np.zeros(shape, np.uint8), np.ones(shape, np.uint8)
            return
        cells, marks = self.source.data[self.source_at], self.source.valid[self.source_at]
        if self.inside is not None:
            cells, marks = np.where(self.inside, cells, 0), np.where(self.inside, marks, 1)
        self._read = cells, marks

    def land(self) -> None:
        """Write the bytes to the target, once."""
        self.read()
        if self.landed or self._read is None:
            return
        self.landed = True
        target = self.target
        target.data[self.target_at], target.valid[self.target_at] = self._read
        if isinstance(target, Block):
            target.all_valid = False
            target.mark_written(1, self.target_at)

    def source_meets(self, store: Any, places: Array) -> Array | None:
        """Which rows of byte places touch the source; None for none."""
        return _met(self.source_at, places) if store is self.source else None

    def target_meets(self, store: Any, places: Array) -> Array | None:
        """Which rows of byte places touch the target; None for none."""
        return _met(self.target_at, places) if store is self.target else None


def _met(mine: Array, places: Array) -> Array | None:
    if int(places.max()) < int(mine.min()) or int(mine.max()) < int(places.min()):
        return None
    touched = np.asarray(np.isin(places, mine).any(axis=1))
    return touched if touched.any() else None
