"""Owns the barriers of every CTA of a batch: who arrived, who is waited for, what is wrong.

It must not know instructions or scheduling: the machine tells it who arrives and asks who may go.
Contract: the PTX ISA's bar and barrier. A lane that exited counts as arrived where the whole CTA is
waited for.
"""

import numpy as np

from ptx.emulator.clocks import Clocks
from ptx.emulator.errors import Fault
from ptx.emulator.lanes import WARP, Lanes
from ptx.emulator.ops_control import BarrierCall
from ptx.numerics import Array

N_BARRIERS = 16
NONE = -1


class Barriers:
    """Sixteen barriers for each CTA."""

    def __init__(self, lanes: Lanes, clocks: Clocks) -> None:
        self.lanes, self.clocks = lanes, clocks
        shape = (lanes.n_ctas, N_BARRIERS)
        # Threads arrived; threads expected, -1 for all of the CTA, 0 while nobody came.
        self.arrived = np.zeros(shape, np.int32)
        self.expected = np.zeros(shape, np.int32)
        self.clock = np.zeros((*shape, clocks.n_columns), np.int32)
        self.waits_at = np.full(lanes.n_lanes, NONE, np.int8)
        self.value = np.zeros(lanes.n_lanes, bool)
        self.pending = False

    def reset(self) -> None:
        """Nobody has arrived anywhere."""
        self.arrived.fill(0)
        self.expected.fill(0)
        self.clock.fill(0)
        self.waits_at.fill(NONE)
        self.pending = False

    def arrive(self, index: Array, call: BarrierCall, alive: Array, aligned: bool) -> Array:
        """Lanes arrive; returns all lanes that may go on now, those of a bar.arrive included."""
        if aligned:
            self._whole_warps(index, alive)
        lanes = self.lanes
        number = np.broadcast_to(call.number(index), len(index)).astype(np.int64)
        if (number >= N_BARRIERS).any():
            raise Fault("barrier", f"barrier {int(number.max())}, a CTA has {N_BARRIERS}", index)
        expected = np.full(len(index), -1, np.int64)
        if call.count is not None:
            expected = np.broadcast_to(call.count(index), len(index)).astype(np.int64)
            if (expected % WARP).any() or (expected == 0).any():
                raise Fault("barrier", f"a count of {int(expected[0])}: needs a multiple of 32",
                            index)
        cta = lanes.cta[index]
        now = self.expected[cta, number]
        wrong = (now != 0) & (now != expected)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise Fault(
                "barrier", f"barrier {int(number[at])} is pending with count "
                f"{_count(int(now[at]))}, here {_count(int(expected[at]))}", index[wrong],
            )
        self.expected[cta, number] = expected
        if call.value is not None:
            self.value[index] = call.value(index)
        self._add(index, number, call.waits)
        self.pending = True
        released = self.release(alive)
        return released if call.waits else np.union1d(released, index)

    def _add(self, index: Array, number: Array, waits: bool) -> None:
        lanes = self.lanes
        pairs = lanes.global_warp[index].astype(np.int64) * N_BARRIERS + number
        warps, counts = np.unique(pairs, return_counts=True)
        cta, warp = np.divmod(warps // N_BARRIERS, lanes.n_warps)
        which = warps % N_BARRIERS
        # Barriers with a count are counted by whole warps.
        whole = self.expected[cta, which] > 0
        np.add.at(self.arrived, (cta, which), np.where(whole, WARP, counts))
        own = self.clocks.known[cta, warp]
        own[np.arange(len(warp)), warp] += 1
        np.maximum.at(self.clock, (cta, which), own)
        if waits:
            self.waits_at[index] = number
        else:
            self.clocks.known[cta, warp, warp] += 1

    def _whole_warps(self, index: Array, alive: Array) -> None:
        here = np.bincount(self.lanes.global_warp[index], minlength=self.lanes.n_lanes // WARP)
        living = alive.reshape(-1, WARP).sum(axis=1)
        bad = (here > 0) & (here != living)
        if bad.any():
            warp = int(np.argmax(bad))
            raise Fault(
                "barrier", f"{int(here[warp])} of the {int(living[warp])} lanes of a warp arrive, "
                "the others are elsewhere", index[self.lanes.global_warp[index] == warp],
            )

    def release(self, alive: Array) -> Array:
        """Complete what is complete; the lanes that waited, ascending."""
        living = alive.reshape(self.lanes.n_ctas, -1).sum(axis=1)[:, None]
        whole = (self.expected == -1) & (self.arrived >= living)
        over = (self.expected > 0) & (self.arrived > self.expected)
        if over.any():
            cta, number = (int(x[0]) for x in np.nonzero(over))
            raise Fault("barrier", f"{self.arrived[cta, number]} threads arrive at barrier {number}"
                        f", expected {self.expected[cta, number]}",
                        np.flatnonzero((self.lanes.cta == cta) & (self.waits_at == number)))
        done = whole | ((self.expected > 0) & (self.arrived == self.expected))
        if not done.any():
            return np.zeros(0, np.int64)
        waiting = self.waits_at >= 0
        ready = waiting & done[self.lanes.cta, np.maximum(self.waits_at, 0)]
        index = np.flatnonzero(ready)
        self._learn(index)
        self.arrived[done] = 0
        self.expected[done] = 0
        self.clock[done] = 0
        return index

    def _learn(self, index: Array) -> None:
        """The warps of released lanes know what all had done before they arrived."""
        numbers, first = np.unique(self.lanes.global_warp[index], return_index=True)
        cta, warp = np.divmod(numbers, self.lanes.n_warps)
        news = self.clock[cta, self.waits_at[index[first]]]
        self.clocks.known[cta, warp] = np.maximum(self.clocks.known[cta, warp], news)

    def leave(self, index: Array) -> None:
        """These lanes wait no more."""
        self.waits_at[index] = NONE
        self.pending = bool((self.waits_at >= 0).any() or self.arrived.any())

    def totals(self, index: Array) -> tuple[Array, Array]:
        """For each released lane: how many of its barrier said true, and how many waited."""
        key = self.lanes.cta[index].astype(np.int64) * N_BARRIERS
        key += np.maximum(self.waits_at[index], 0)
        trues = np.bincount(key, self.value[index], minlength=self.lanes.n_ctas * N_BARRIERS)
        counts = np.bincount(key, minlength=self.lanes.n_ctas * N_BARRIERS)
        return trues[key], counts[key]


def _count(n: int) -> str:
    return "of the whole CTA" if n == -1 else str(n)
