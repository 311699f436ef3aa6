"""Owns the recurrent state of sessions: slots on the device, which one is live, copies of it.

Every session has two slots and works in turn: a pass reads the live slot and writes the other, and
only a commit makes that one live. So a pass that fails has changed nothing. Slot 0 is zero for
ever and stands for the empty state. A model without recurrent layers has no arrays, and all of
this costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.errors import RuntimeFailure
from engine.kv_cache import KvSequence
from engine.trail import EMPTY

ZERO_SLOT = 0
Arrays = Mapping[str, npt.NDArray[np.float32]]


class Slots(Protocol):
    """What of a program has slots of recurrent state: arrays by name, with one row for each."""

    states: dict[str, Any]

    def read_slot(self, slot: int) -> dict[str, npt.NDArray[np.float32]]:
        """A copy of one slot of every array."""

    def write_slot(self, slot: int, arrays: Arrays) -> None:
        """Store one slot of every array."""


def slots_for(n_lanes: int) -> int:
    """Slots of a model: the zero slot and two for each lane."""
    return 1 + 2 * n_lanes


def write_zero_slot(program: Slots, states: Mapping[str, tuple[int, ...]]) -> None:
    """Make the zero slot what it stands for: fresh device memory may hold anything."""
    zeros = {name: np.zeros(shape, np.float32) for name, shape in states.items()}
    program.write_slot(ZERO_SLOT, zeros)


@dataclass(frozen=True)
class Snapshot:
    """A copy of one sequence's state after `n_tokens` tokens, which `mark` stands for."""

    n_tokens: int
    mark: int
    arrays: Arrays


class RecurrentState:
    """One session's state; `n_tokens` tokens have gone into the live slot, marked `mark`."""

    def __init__(self, program: Slots, lane: int) -> None:
        self._program = program
        self._slots = (1 + 2 * lane, 2 + 2 * lane)
        self.clear()

    @property
    def exists(self) -> bool:
        """Whether the model has recurrent layers at all."""
        return bool(self._program.states)

    @property
    def spare(self) -> int:
        """The slot that the next pass writes."""
        return self._slots[1] if self.live == self._slots[0] else self._slots[0]

    def advance(self, n_tokens: int, mark: int) -> None:
        """The pass that wrote the spare slot counts: it is live, after `n_tokens` tokens."""
        self.live = self.spare
        self.n_tokens = n_tokens
        self.mark = mark

    def clear(self) -> None:
        """Back to the empty state."""
        self.live = ZERO_SLOT
        self.n_tokens = 0
        self.mark = EMPTY

    def check(self, cells: KvSequence, n_tokens: int) -> None:
        """RuntimeFailure unless this is the state behind the first `n_tokens` of these cells."""
        if not self.exists:
            return
        if self.n_tokens != n_tokens:
            raise RuntimeFailure(
                f"recurrent state: of {self.n_tokens} tokens, that of {n_tokens} is needed"
            )
        if cells.length < n_tokens or self.mark != cells.mark(n_tokens):
            raise RuntimeFailure(
                f"recurrent state: its {n_tokens} tokens are not those of the KV cells"
            )

    def snapshot(self) -> Snapshot:
        """A copy of the live state."""
        return Snapshot(self.n_tokens, self.mark, self._program.read_slot(self.live))

    def restore(self, snapshot: Snapshot) -> None:
        """Make a copy the live state."""
        if snapshot.n_tokens == 0:
            self.clear()
            return
        self._program.write_slot(self.spare, snapshot.arrays)
        self.advance(snapshot.n_tokens, snapshot.mark)
