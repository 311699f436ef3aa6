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
    """One object: `phase` counts completed phases; `gathers` and `tells` are clocks of warps.

    `event` is the column of the clocks that counts its phases, 0 where nobody asks.
    """

    expected: int
    pending: int
    gathers: Array
    tells: Array
    cta: int
    event: int
    phase: int = 0
    n_bytes: int = 0


class MBarriers:
    """The mbarriers of a batch, by byte place."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self._at: dict[int, MBarrier] = {}
        self._n_events = state.clocks.n_columns - state.lanes.n_warps
        # Events by place in the CTA, and how often each turned, also for objects made anew.
        self._events: dict[int, int] = {}
        self._turns = np.zeros((state.lanes.n_ctas, max(1, self._n_events)), np.int32)

    def reset(self) -> None:
        """None is initialised."""
        self._at.clear()
        self._turns.fill(0)

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
        for lane, place, n in zip(self.state.lanes.index(sel), places, count, strict=True):
            if not 1 <= n <= MAX_COUNT:
                raise self._fault("barrier", f"a count of {n}, needs 1 to {MAX_COUNT}", lane, place)
            if int(place) in self._at:
                raise self._fault("barrier", "is initialised again without inval", lane, place)
            zeros = np.zeros(self.state.clocks.n_columns, np.int32)
            cta, event = int(self.state.lanes.cta[lane]), self._event_at(int(place))
            self._at[int(place)] = MBarrier(int(n), int(n), zeros, zeros.copy(), cta, event)
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
            self._check_pending(barrier, int(count[at]), lane, place)
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

    def complete(self, lane: int, place: int, n_bytes: int) -> tuple[int, int]:
        """A copy that `lane` asked for has landed and reports its bytes; event and turn of that."""
        barrier = self._get(lane, place)
        told = barrier.event, int(self._turns[barrier.cta, barrier.event]) + 1
        self._bytes(barrier, -n_bytes, lane, place)
        self._turn(barrier)
        self.state.progress += 1
        return told

    def arrive_after_copies(
        self, lanes: Array, place: int, tells_all: bool
    ) -> tuple[int, int]:
        """The copies of `lanes` have landed, an arrival for each lane; event and turn of that.

        What else the lanes have done is told when `tells_all`.
        """
        barrier = self._get(int(lanes[0]), place)
        told = barrier.event, int(self._turns[barrier.cta, barrier.event]) + 1
        self._check_pending(barrier, len(lanes), int(lanes[0]), place)
        for lane in lanes if tells_all else ():
            self._publish(barrier, int(lane))
        barrier.pending -= len(lanes)
        self._turn(barrier)
        if tells_all:
            self._step(lanes)
        self.state.progress += 1
        return told

    def waited(self, sel: Sel, places: Array, token: Array, parity: bool) -> Array:
        """For each lane whether the asked phase has completed; those who pass learn what it tells.
        """
        self.touch(sel, places, False)
        index = self.state.lanes.index(sel)
        # Lanes of a warp mostly ask the same: one answer for each run of equal questions.
        warps = self.state.lanes.global_warp[index]
        new = np.ones(len(index), bool)
        new[1:] = False
        for asked in (warps, places, token):
            new[1:] |= asked[1:] != asked[:-1]
        first = np.flatnonzero(new)
        answers = [
            self._has_completed(int(index[at]), int(places[at]), int(token[at]), parity)
            for at in first
        ]
        return np.repeat(np.array(answers, bool), np.diff(first, append=len(index)))

    def _has_completed(self, lane: int, place: int, asked: int, parity: bool) -> bool:
        barrier = self._get(lane, place)
        # Parity P has completed when the running phase has the other parity.
        done = (barrier.phase & 1) != (asked & 1) if parity else barrier.phase > asked
        if done:
            cta, warp = int(self.state.lanes.cta[lane]), int(self.state.lanes.warp[lane])
            self.state.clocks.join(cta, warp, barrier.tells)
            if barrier.event:
                turn = int(barrier.tells[self.state.lanes.n_warps + barrier.event])
                self.state.completions.reports.waited(cta, barrier.event, turn)
        return done

    def add_pending(self, sel: Sel, places: Array) -> None:
        """One more arrival of the running phase for each lane."""
        for lane, place in zip(self.state.lanes.index(sel), places, strict=True):
            self._get(lane, place).pending += 1

    def _event_at(self, place: int) -> int:
        """Event 0 is not of an mbarrier; with more of them than events, some share one."""
        if self._n_events < 2:
            return 0
        offset = place % int(self.state.space("shared").stride)
        number = self._events.setdefault(offset, len(self._events))
        return 1 + number % int(self._n_events - 1)

    def _check_pending(self, barrier: MBarrier, count: int, lane: int, place: int) -> None:
        if count > barrier.pending:
            raise self._fault("barrier", f"{count} arrivals, {barrier.pending} are pending",
                              lane, place)

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
        if barrier.event:
            self._turns[barrier.cta, barrier.event] += 1
            column = self.state.lanes.n_warps + barrier.event
            barrier.tells[column] = self._turns[barrier.cta, barrier.event]
        barrier.phase += 1
        barrier.pending = barrier.expected
