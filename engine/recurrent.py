"""Owns the recurrent state of sessions: slots on the device, who holds them, copies of them.

A slot that holds a state is never written again: a pass reads the live slot and writes another one,
and only a commit makes that one live. So a pass that fails has changed nothing, and to keep a state
(a verify window may come back to it, a prefix begins with it) is to hold its slot. Where slots run
out the oldest kept state moves to main memory. Slot 0 is zero for ever and stands for the empty
state. A model without recurrent layers has no arrays, and all of this costs nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.errors import RuntimeFailure
from engine.kv_cache import KvSequence
from engine.trail import EMPTY

ZERO_SLOT = 0
# Slots beyond those that sessions work with, for kept states: one for a lane, up to so many.
MAX_KEPT_SLOTS = 4
Arrays = Mapping[str, npt.NDArray[np.float32]]


class Slots(Protocol):
    """What of a program has slots of recurrent state: arrays by name, with one row for each."""

    states: dict[str, Any]

    def read_slot(self, slot: int) -> dict[str, npt.NDArray[np.float32]]:
        """A copy of one slot of every array."""

    def write_slot(self, slot: int, arrays: Arrays) -> None:
        """Store one slot of every array."""


def slots_for(n_lanes: int) -> int:
    """Slots of a model: the zero slot, two for each lane, and some for kept states."""
    return 1 + 2 * n_lanes + min(n_lanes, MAX_KEPT_SLOTS)


def write_zero_slot(program: Slots, states: Mapping[str, tuple[int, ...]]) -> None:
    """Make the zero slot what it stands for: fresh device memory may hold anything."""
    zeros = {name: np.zeros(shape, np.float32) for name, shape in states.items()}
    program.write_slot(ZERO_SLOT, zeros)


class Snapshot:
    """One sequence's state after `n_tokens` tokens, which `mark` stands for: in a slot that it
    holds for as long as it lives, or in arrays."""

    def __init__(
        self, n_tokens: int, mark: int, arrays: Arrays | None = None,
        held: tuple[SlotPool, int] | None = None,
    ) -> None:
        """One of both: arrays, or a pool and a slot of it, which is held from now on."""
        self.n_tokens, self.mark = n_tokens, mark
        self._arrays = arrays
        self._held = held
        if held is not None:
            pool, slot = held
            pool.hold(slot)
            self._give_back = weakref.finalize(self, pool.release, slot)
            self._give_back.atexit = False

    @property
    def slot(self) -> int | None:
        """The slot, None where the state is in arrays."""
        return self._held[1] if self._held else None

    @property
    def arrays(self) -> Arrays:
        """The state in main memory: a copy where it lies in a slot."""
        if self._held is not None:
            pool, slot = self._held
            return pool.program.read_slot(slot)
        assert self._arrays is not None
        return self._arrays

    def move(self, arrays: Arrays) -> None:
        """Keep arrays, which are those of the slot, instead of it."""
        if self._held is not None:
            self._arrays, self._held = arrays, None
            self._give_back()


class SlotPool:
    """Which slots of a program are held, and by how many; any thread may release one."""

    def __init__(self, program: Slots, n_slots: int) -> None:
        """All free but the zero slot."""
        self.program = program
        self._holders = [1] + [0] * (n_slots - 1)
        self._kept: list[weakref.ref[Snapshot]] = []
        # A kept state may be dropped by the collector in the middle of a call.
        self._lock = threading.RLock()

    def take(self) -> int:
        """A slot that nobody else holds; a kept state moves to main memory for it if it must.

        RuntimeFailure when the device cannot give that state.
        """
        with self._lock:
            if 0 not in self._holders:
                self._move_one()
            slot = self._holders.index(0)
            self._holders[slot] = 1
            return slot

    def hold(self, slot: int) -> None:
        """One more holder of a slot."""
        with self._lock:
            self._holders[slot] += 1

    def release(self, slot: int) -> None:
        """One holder less."""
        with self._lock:
            self._holders[slot] -= 1

    def keep(self, n_tokens: int, mark: int, slot: int) -> Snapshot:
        """A snapshot that holds the slot."""
        made = Snapshot(n_tokens, mark, held=(self, slot))
        with self._lock:
            self._kept = [ref for ref in self._kept if ref() is not None]
            self._kept.append(weakref.ref(made))
        return made

    def n_free(self) -> int:
        """Slots that nobody holds."""
        return self._holders.count(0)

    def _move_one(self) -> None:
        """Free the slot of the oldest kept state that only kept states hold."""
        by_slot: dict[int, list[Snapshot]] = {}
        for snapshot in filter(None, (ref() for ref in self._kept)):
            if snapshot.slot is not None:
                by_slot.setdefault(snapshot.slot, []).append(snapshot)
        for slot, sharing in by_slot.items():
            if self._holders[slot] == len(sharing):
                arrays = self.program.read_slot(slot)
                for snapshot in sharing:
                    snapshot.move(arrays)
                return
        raise RuntimeFailure(f"recurrent state: all {len(self._holders)} slots are in use")


class RecurrentState:
    """One session's state; `n_tokens` tokens have gone into the live slot, marked `mark`."""

    def __init__(self, pool: SlotPool) -> None:
        """Empty."""
        self._pool = pool
        self._spare: int | None = None
        self.live, self.n_tokens, self.mark = ZERO_SLOT, 0, EMPTY

    @property
    def exists(self) -> bool:
        """Whether the model has recurrent layers at all."""
        return bool(self._pool.program.states)

    @property
    def spare(self) -> int:
        """The slot that the next pass writes."""
        if self._spare is None:
            self._spare = self._pool.take()
        return self._spare

    def advance(self, n_tokens: int, mark: int) -> None:
        """The pass that wrote the spare slot counts: it is live, after `n_tokens` tokens."""
        live = self.spare
        self._spare = None
        self._become(live, n_tokens, mark)

    def clear(self) -> None:
        """Back to the empty state."""
        self._become(ZERO_SLOT, 0, EMPTY)

    def free(self) -> None:
        """Empty, and without a slot for a next pass."""
        self.clear()
        if self._spare is not None:
            self._pool.release(self._spare)
            self._spare = None

    def _become(self, live: int, n_tokens: int, mark: int) -> None:
        """Take over a slot that is held for this state already, and release the one before."""
        before, self.live = self.live, live
        self.n_tokens, self.mark = n_tokens, mark
        if before != ZERO_SLOT:
            self._pool.release(before)

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
        """The live state, kept."""
        return self._pool.keep(self.n_tokens, self.mark, self.live)

    def restore(self, snapshot: Snapshot) -> None:
        """Make a kept state the live one."""
        if snapshot.n_tokens == 0:
            self.clear()
        elif snapshot.slot is not None:
            self._pool.hold(snapshot.slot)
            self._become(snapshot.slot, snapshot.n_tokens, snapshot.mark)
        else:
            self._pool.program.write_slot(self.spare, snapshot.arrays)
            self.advance(snapshot.n_tokens, snapshot.mark)
