"""Owns what copies reported to mbarriers: which bytes they wrote, and who may touch them since.

It must not know instructions. A reported byte may be touched by warps that know that the phase in
which it was reported is over: they waited for it, or learnt it from one who did. Knowledge is an
event of the clocks, one for each mbarrier of a CTA, counted in phases.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ptx.emulator.copies import GROUP, Copy
from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Sel
from ptx.numerics import Array

NONE = -1
# Reports of copies that lanes may still wait for by themselves, before old ones are dropped.
MAX_KEPT = 256


class Report(NamedTuple):
    """A copy that was reported to the mbarrier of event `event` of its CTA, in phase `turn`."""

    copy: Copy
    cta: int
    event: int
    turn: int


class Reports:
    """The reported bytes of shared memory, and the reports that nobody waited for yet."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.unseen: list[Report] = []
        self._by_lanes: list[Report] = []
        self._event: Array | None = None
        self._turn: Array | None = None

    @property
    def active(self) -> bool:
        """Whether anything was reported."""
        return self._event is not None

    def reset(self) -> None:
        """Nothing was reported."""
        self.unseen.clear()
        self._by_lanes.clear()
        self._event = self._turn = None

    def tell(self, report: Report) -> None:
        """The copy has landed, and the mbarrier knows."""
        if self._event is None or self._turn is None:
            n_bytes = len(self.state.space("shared").data)
            self._event = np.full(n_bytes, NONE, np.int16)
            self._turn = np.zeros(n_bytes, np.int32)
        self._event[report.copy.target_at] = report.event
        self._turn[report.copy.target_at] = report.turn
        self.unseen.append(report)
        if report.copy.how == GROUP:
            self._by_lanes.append(report)
            if len(self._by_lanes) > MAX_KEPT:
                kept = [r for r in self._by_lanes if self._is_of(r, r.copy.target_at).any()]
                self._by_lanes = kept

    def waited(self, cta: int, event: int, turn: int) -> None:
        """Somebody waited for a phase, and so for what was reported in it and before."""
        if self.unseen:
            self.unseen = [
                r for r in self.unseen if (r.cta, r.event) != (cta, event) or r.turn > turn
            ]

    def check(self, sel: Sel, places: Array) -> None:
        """Fault for lanes that touch bytes [lanes, bytes] whose report they do not know of."""
        if self._event is None or self._turn is None:
            return
        event = self._event[places]
        reported = event != NONE
        if not reported.any():
            return
        seen = self.state.clocks.has_seen(sel, np.maximum(event, 0), self._turn[places])
        bad = (reported & ~seen).any(axis=1)
        if bad.any():
            address, name, offset = self.state.space("shared").shown(
                int(places[int(np.argmax(bad))][0])
            )
            raise Fault("async", "touches the destination of a copy without having waited for it",
                        self.state.lanes.index(sel)[bad], address, name, offset)

    def waited_by_lanes(self, done: Callable[[Copy], Array]) -> None:
        """Lanes waited for their own copies, without the mbarrier: these are ordinary bytes now."""
        for report in list(self._by_lanes):
            chosen = done(report.copy)
            if not chosen.any():
                continue
            self._drop(report, report.copy.part(~chosen))
            at = report.copy.target_at[chosen]
            assert self._event is not None
            self._event[at[self._is_of(report, at)]] = NONE

    def _drop(self, report: Report, rest: Copy) -> None:
        """Let `rest` stand for a report's copy."""
        for held in (self._by_lanes, self.unseen):
            if report in held:
                held.remove(report)
                if len(rest.lanes):
                    held.append(report._replace(copy=rest))

    def _is_of(self, report: Report, at: Array) -> Array:
        """Which bytes are still those of a report, and not of a newer one."""
        assert self._event is not None
        assert self._turn is not None
        return np.asarray((self._event[at] == report.event) & (self._turn[at] == report.turn))
