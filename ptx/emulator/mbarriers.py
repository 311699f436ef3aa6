"""Owns mbarrier objects: counts, phases, transaction bytes, and the knowledge that they carry.

It must not know instruction syntax. An object is found by its byte place in the shared memory of
the batch. Contract: the PTX ISA's mbarrier.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Sel
from ptx.numerics import Array

MAX_COUNT = (1 << 20) - 1
N_BYTES = 8


@dataclass
class MBarrier:
    """One object: `phase` counts completed phases; `gathers` and `tells` are clocks of warps."""

    expected: int
    pending: int
    gathers: Array
    tells: Array
    phase: int = 0
    n_bytes: int = 0


class MBarriers:
    """The mbarriers of a batch, by byte place."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self._at: dict[int, MBarrier] = {}

    def reset(self) -> None:
        """None is initialised."""
        self._at.clear()

    def places(self, sel: Sel, address: Array) -> Array:
        """Byte places of the addressed objects; Fault outside memory or off their alignment."""
        places: Array = self.state.space("shared").places(sel, address, N_BYTES)
        bad = address % np.uint64(N_BYTES) != 0
        if bad.any():
            raise Fault("alignment", "an mbarrier needs a multiple of 8",
                        self.state.lanes.index(sel)[bad], int(address[int(np.argmax(bad))]))
        return places

    def touch(self, sel: Sel, places: Array, writes: bool) -> None:
        """Uses of an object must be ordered after its initialisation, and ended before the next."""
        state = self.state
        store = state.space("shared")
        state.watch(store, sel, slice(None), places // N_BYTES, N_BYTES, 1, writes, False)

    def init(self, sel: Sel, places: Array, count: Array) -> None:
        """Make objects in phase 0."""
        self.touch(sel, places, True)
        n_warps = self.state.lanes.n_warps
        for lane, place, n in zip(self.state.lanes.index(sel), places, count, strict=True):
            if not 1 <= n <= MAX_COUNT:
                raise self._fault("barrier", f"a count of {n}, needs 1 to {MAX_COUNT}", lane, place)
            if int(place) in self._at:
                raise self._fault("barrier", "is initialised again without inval", lane, place)
            zeros = np.zeros(n_warps, np.int32)
            self._at[int(place)] = MBarrier(int(n), int(n), zeros, zeros.copy())
        store = self.state.space("shared")
        store.valid[places[:, None] + np.arange(N_BYTES)] = 1
        self.state.progress += 1

    def inval(self, sel: Sel, places: Array) -> None:
        """Unmake objects."""
        self.touch(sel, places, True)
        for lane, place in zip(self.state.lanes.index(sel), places, strict=True):
            self._get(lane, place)
            self._at.pop(int(place), None)

    def arrive(self, sel: Sel, places: Array, count: Array, n_bytes: Array, drops: bool) -> Array:
        """Arrive `count` times, after expecting `n_bytes` more; the tokens of the phase."""
        self.touch(sel, places, False)
        index = self.state.lanes.index(sel)
        tokens = np.zeros(len(index), np.uint64)
        for at, (lane, place) in enumerate(zip(index, places, strict=True)):
            barrier = self._get(lane, place)
            self._bytes(barrier, int(n_bytes[at]), lane, place)
            tokens[at] = barrier.phase
            if count[at] > barrier.pending:
                raise self._fault("barrier", f"{count[at]} arrivals, {barrier.pending} are pending",
                                  lane, place)
            self._publish(barrier, lane)
            barrier.pending -= int(count[at])
            if drops:
                barrier.expected -= int(count[at])
            self._turn(barrier)
        self._step(index)
        self.state.progress += 1
        return tokens

    def expect(self, sel: Sel, places: Array, n_bytes: Array, sign: int) -> None:
        """Change the bytes that the phase waits for."""
        self.touch(sel, places, False)
        for at, (lane, place) in enumerate(
            zip(self.state.lanes.index(sel), places, strict=True)
        ):
            barrier = self._get(lane, place)
            self._bytes(barrier, sign * int(n_bytes[at]), lane, place)
            self._turn(barrier)
        self.state.progress += 1

    def complete(self, lane: int, place: int, n_bytes: int) -> None:
        """A copy of `lane` has landed and reports its bytes."""
        barrier = self._get(lane, place)
        self._publish(barrier, lane)
        self._bytes(barrier, -n_bytes, lane, place)
        self._turn(barrier)
        self._step(np.array([lane]))
        self.state.progress += 1

    def waited(self, sel: Sel, places: Array, token: Array, parity: bool) -> Array:
        """For each lane whether the asked phase has completed; those who pass learn what it tells.
        """
        self.touch(sel, places, False)
        index = self.state.lanes.index(sel)
        done = np.zeros(len(index), bool)
        for at, (lane, place) in enumerate(zip(index, places, strict=True)):
            barrier = self._get(lane, place)
            asked = int(token[at])
            # Parity P has completed when the running phase has the other parity.
            done[at] = (barrier.phase & 1) != (asked & 1) if parity else barrier.phase > asked
            if done[at]:
                cta, warp = int(self.state.lanes.cta[lane]), int(self.state.lanes.warp[lane])
                self.state.clocks.join(cta, warp, barrier.tells)
        return done

    def add_pending(self, sel: Sel, places: Array) -> None:
        """One more arrival of the running phase for each lane."""
        for lane, place in zip(self.state.lanes.index(sel), places, strict=True):
            self._get(lane, place).pending += 1

    def _get(self, lane: int, place: int) -> MBarrier:
        barrier = self._at.get(int(place))
        if barrier is None:
            raise self._fault("barrier", "an mbarrier is used before its init", lane, place)
        return barrier

    def _fault(self, kind: str, message: str, lane: int, place: int) -> Fault:
        address, name, offset = self.state.space("shared").shown(int(place))
        return Fault(kind, message, np.array([lane]), address, name, offset)

    def _bytes(self, barrier: MBarrier, n_bytes: int, lane: int, place: int) -> None:
        barrier.n_bytes += n_bytes
        if abs(barrier.n_bytes) > MAX_COUNT:
            text = f"{barrier.n_bytes} transaction bytes, at most {MAX_COUNT}"
            raise self._fault("barrier", text, lane, place)

    def _publish(self, barrier: MBarrier, lane: int) -> None:
        cta, warp = int(self.state.lanes.cta[lane]), int(self.state.lanes.warp[lane])
        np.maximum(barrier.gathers, self.state.clocks.own(cta, warp), out=barrier.gathers)

    def _step(self, index: Array) -> None:
        """What a warp does after it arrived is not told by this arrival."""
        self.state.clocks.step_warps(index)

    def _turn(self, barrier: MBarrier) -> None:
        if barrier.pending or barrier.n_bytes:
            return
        barrier.tells = barrier.gathers.copy()
        barrier.phase += 1
        barrier.pending = barrier.expected
