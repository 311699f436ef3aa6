"""Owns asynchronous copies that have been asked for and not yet landed.

It must not know instruction syntax. A copy lands as late as is legal: when somebody's wait covers
it, or when nobody can go on otherwise. With a seed, lots decide which ones land earlier and when.
However early it landed, its destination belongs to it, and its source must stay as it was, until
somebody has waited. Contract: the PTX ISA's asynchronous copies and their completion mechanisms.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ptx.emulator.claims import Claims
from ptx.emulator.copies import BARRIER, BULK, GROUP, Copy
from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Sel
from ptx.emulator.reports import Report, Reports
from ptx.numerics import Array

# Executed steps after which a copy that the lots bring forward lands at the latest.
MAX_DELAY = 64
NEVER = 1 << 62


@dataclass(eq=False)
class Arrival:
    """Lanes arrive at the mbarrier at `barrier_at` once their copies before `number` have landed.

    It tells of the copies alone, or of all that the lanes did when they waited for the copies too.
    """

    lanes: Array
    barrier_at: int
    number: int
    site: int
    due: int | None
    tells_all: bool = False


class Completions:
    """The pending copies of a batch, and what shall happen once they have landed."""

    def __init__(self, state: Any) -> None:
        self.state = state
        n = state.lanes.n_lanes
        # Groups that a lane has closed; a pending copy's group is the count when it was issued.
        self.closed = {GROUP: np.zeros(n, np.int32), BULK: np.zeros(n, np.int32)}
        self.pending: list[Copy] = []
        self.reports = Reports(state)
        self._arrivals: list[Arrival] = []
        self._n_copies = self._tick = 0
        self._next_due = NEVER
        self.claims = Claims(state, self)

    def reset(self) -> None:
        """Nothing is pending."""
        self.pending.clear()
        self._arrivals.clear()
        self.reports.reset()
        self._next_due = NEVER
        self.claims.reset()
        for counts in self.closed.values():
            counts.fill(0)

    # Asking for copies, and waiting

    def start(self, copy: Copy) -> None:
        """A copy was asked for; its destination belongs to it from now on."""
        self.claims.take(copy)
        copy.number = self._n_copies
        self._n_copies += 1
        self.pending += self._by_lot(copy)

    def arrive_after(self, lanes: Array, places: Array) -> None:
        """Lanes arrive at mbarriers once the copies that they asked for so far have landed."""
        for place in np.unique(places):
            mine = lanes[places == place]
            due = self._draw() if self.state.shuffled else None
            self._arrivals.append(
                Arrival(mine, int(place), self._n_copies, self.state.site, due)
            )

    def promised(self, copy: Copy) -> Array:
        """The lanes of a copy whose mbarrier will tell of it: somebody else waits for that."""
        found = np.zeros(len(copy.lanes), bool)
        for arrival in self._arrivals:
            if copy.how == GROUP and copy.number < arrival.number:
                found |= np.isin(copy.lanes, arrival.lanes)
        return found

    def close_group(self, sel: Sel, how: str) -> None:
        """The lanes' copies so far form a group."""
        self.closed[how][sel] += 1

    def wait_groups(self, sel: Sel, how: str, n_open: int | None, reads: bool = False) -> None:
        """Land all but the newest n_open groups of these lanes; None: really all.

        With `reads` the copies only need to have read their sources.
        """
        chosen = np.zeros(self.state.lanes.n_lanes, bool)
        chosen[sel] = True

        def done(copy: Copy) -> Array:
            covered = chosen[copy.lanes]
            if n_open is not None:
                covered = covered & (copy.group < self.closed[how][copy.lanes] - n_open)
            return np.asarray(covered)

        for copy in list(self.pending):
            if copy.how == how and (part := self._take(copy, done(copy))):
                self._give_back(part)
                if reads:
                    self.pending.append(part)
                else:
                    self._end(part)
        if how == GROUP:
            self.reports.waited_by_lanes(done)
            for arrival in self._arrivals:
                arrival.tells_all |= bool(chosen[arrival.lanes].any())

    def _take(self, copy: Copy, done: Array) -> Copy | None:
        """Those lanes of a pending copy for which it ends, no longer pending."""
        if not done.any():
            return None
        self.pending.remove(copy)
        if done.all():
            return copy
        self.pending.append(copy.part(~done))
        return copy.part(done)

    def _give_back(self, copy: Copy) -> None:
        """The source may change: its lanes have waited until it was read."""
        copy.read()
        if copy.lent:
            self.claims.access(copy, True)
        copy.lent = False

    def _end(self, copy: Copy) -> None:
        """The destination is as if the lanes themselves had written it now."""
        copy.land()
        self.claims.end(copy)
        self.state.progress += 1

    def _report(self, copy: Copy, event: int, turn: int) -> None:
        """The copy has landed and an mbarrier was told, which those who wait there will know."""
        copy.land()
        self.claims.report(copy)
        cta = int(self.state.lanes.cta[copy.lanes[0]])
        self.reports.tell(Report(copy, cta, event, turn))

    # Landing, early or late

    def _by_lot(self, copy: Copy) -> list[Copy]:
        """The copy, or with a seed those of its lanes that land early and those that land late."""
        if not self.state.shuffled:
            return [copy]
        bits = self.state.random.getrandbits(len(copy.lanes))
        early = np.array([bits >> at & 1 for at in range(len(copy.lanes))], bool)
        parts = [copy.part(chosen) for chosen in (early, ~early) if chosen.any()]
        if early.any():
            parts[0].due = self._draw()
        return parts

    def _draw(self) -> int:
        """At once or some steps later."""
        random = self.state.random
        due: int = self._tick + random.choice((0, random.randrange(MAX_DELAY)))
        self._next_due = min(self._next_due, due)
        return due

    def tick(self) -> None:
        """A step was executed: land what the lots say."""
        self._tick += 1
        if self._tick < self._next_due:
            return
        self._next_due = NEVER
        items: list[Arrival | Copy] = [*self._arrivals, *self.pending]
        for item in items:
            if item.due is None:
                continue
            if item.due > self._tick:
                self._next_due = min(self._next_due, item.due)
                continue
            item.due = None
            if isinstance(item, Arrival) or item.how == BARRIER:
                self._tell(item)
            elif item in self.pending:
                # An arrival that came first may have told of it.
                item.land()

    def advance(self) -> bool:
        """Let something be told because everybody waits; False when there is nothing."""
        waiting: list[Arrival | Copy] = [
            *self._arrivals, *(copy for copy in self.pending if copy.how == BARRIER)
        ]
        if not waiting:
            return False
        self._tell(self.state.random.choice(waiting) if self.state.shuffled else waiting[0])
        return True

    def _tell(self, item: Arrival | Copy) -> None:
        """Tell an mbarrier that copies have landed."""
        before, self.state.site = self.state.site, item.site
        barriers, lanes = self.state.mbarriers, item.lanes
        if isinstance(item, Copy):
            self.pending.remove(item)
            n_bytes = item.target_at.size
            self._report(item, *barriers.complete(int(lanes[0]), item.barrier_at, n_bytes))
        else:
            self._arrivals.remove(item)
            told = barriers.arrive_after_copies(lanes, item.barrier_at, item.tells_all)
            for copy in list(self.pending):
                if copy.how == GROUP and copy.number < item.number:
                    part = self._take(copy, np.isin(copy.lanes, lanes))
                    if part is not None:
                        self._report(part, *told)
        self.state.site = before

    def at_end(self) -> None:
        """The batch ends: land what may land now; Fault for copies that nobody waited for."""
        for copy in [*self.pending, *(report.copy for report in self.reports.unseen)]:
            if copy.lent and self.state.sanitise:
                self.state.site = copy.site
                raise Fault("async", "nobody waited for this copy", copy.lanes)
            copy.land()
        self.pending.clear()
        self.reports.unseen.clear()
