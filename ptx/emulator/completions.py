"""Owns asynchronous copies that have been asked for and not yet landed.

It must not know instruction syntax. A copy lands as late as is legal: when somebody's wait covers
it, or when nobody can go on otherwise. Until then its destination belongs to it, and its source
must stay as it was. Contract: the PTX ISA's asynchronous copies and their completion mechanisms.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Sel
from ptx.emulator.memory import Block
from ptx.numerics import Array

# How a copy's end is told: by groups of cp.async, by groups of bulk copies, by an mbarrier.
GROUP, BULK, BARRIER = "cp.async group", "bulk group", "mbarrier"


@dataclass
class Copy:
    """Copies of several lanes, a row of bytes for each.

    `source_at` and `target_at` are byte places [lanes, bytes] in the stores; `filled` are the bytes
    as they were when the copy was asked for, `marks` which of them somebody had written.
    """

    how: str
    lanes: Array
    source: Any
    source_at: Array
    target: Any
    target_at: Array
    filled: Array
    marks: Array
    group: Array
    site: int
    landed: Callable[[Array], None] | None = None

    def part(self, chosen: Array) -> "Copy":
        """The copies of some of the lanes."""
        return Copy(
            self.how, self.lanes[chosen], self.source, self.source_at[chosen], self.target,
            self.target_at[chosen], self.filled[chosen], self.marks[chosen], self.group[chosen],
            self.site, self.landed,
        )


class Completions:
    """The pending copies of a batch, and what shall happen once they have landed."""

    def __init__(self, state: Any) -> None:
        self.state = state
        n = state.lanes.n_lanes
        # Groups that a lane has closed; a pending copy's group is the count when it was issued.
        self.closed = {GROUP: np.zeros(n, np.int32), BULK: np.zeros(n, np.int32)}
        self.pending: list[Copy] = []
        self._later: list[Callable[[], None]] = []
        self._busy = np.zeros(len(state.space("shared").data), bool)
        # Bytes of shared memory that ordinary stores wrote and no proxy fence has shown yet.
        self._unfenced: Array | None = None

    def reset(self) -> None:
        """Nothing is pending."""
        self.pending.clear()
        self._later.clear()
        self._busy.fill(False)
        if self._unfenced is not None:
            self._unfenced.fill(False)
        for counts in self.closed.values():
            counts.fill(0)

    def watch_proxy(self) -> None:
        """The kernel has copies that read shared memory by another path: watch for fences."""
        self._unfenced = np.zeros(len(self._busy), bool)

    def start(self, copy: Copy) -> None:
        """A copy was asked for; its destination belongs to it from now on."""
        if self._shared(copy.target):
            self._race(copy)
            self._busy[copy.target_at] = True
        if self._shared(copy.source) and self._unfenced is not None:
            bad = self._unfenced[copy.source_at].any(axis=1)
            if bad.any():
                raise Fault("async", "an asynchronous copy reads shared memory that ordinary "
                            "stores wrote, with no proxy fence between", copy.lanes[bad])
        self.pending.append(copy)

    def later(self, call: Callable[[], None]) -> None:
        """Do something once nobody can go on without it."""
        self._later.append(call)

    def close_group(self, sel: Sel, how: str) -> None:
        """The lanes' copies so far form a group."""
        self.closed[how][sel] += 1

    def wait_groups(self, sel: Sel, how: str, n_open: int | None) -> None:
        """Land all but the newest n_open groups of these lanes; None: really all."""
        chosen = np.zeros(self.state.lanes.n_lanes, bool)
        chosen[sel] = True
        for copy in list(self.pending):
            if copy.how != how:
                continue
            done = chosen[copy.lanes]
            if n_open is not None:
                done &= copy.group < self.closed[how][copy.lanes] - n_open
            self._take(copy, done)

    def wait_lanes(self, index: Array) -> None:
        """Land every cp.async of these lanes."""
        self.wait_groups(index, GROUP, None)

    def _take(self, copy: Copy, done: Array) -> None:
        if not done.any():
            return
        self.pending.remove(copy)
        if not done.all():
            self.pending.append(copy.part(~done))
            copy = copy.part(done)
        self._land(copy)

    def _land(self, copy: Copy) -> None:
        now = copy.source.data[copy.source_at]
        changed = ((now != copy.filled) & copy.marks.astype(bool)).any(axis=1)
        # Bytes that the copy fills with zeros have no source: their marks are 2.
        changed &= (copy.marks == 1).all(axis=1)
        if changed.any():
            raise Fault("async", "the source of a copy started at "
                        f"{self.state.shown_site(copy.site)} changed before it landed",
                        copy.lanes[changed])
        target = copy.target
        if self._shared(target):
            self._busy[copy.target_at] = False
            self._race(copy)
        target.data[copy.target_at] = copy.filled
        target.valid[copy.target_at] = copy.marks != 0
        if isinstance(target, Block):
            target.all_valid = False
            target.mark_written(1, copy.target_at)
        self.state.progress += 1
        if copy.landed is not None:
            copy.landed(copy.lanes)

    def _race(self, copy: Copy) -> None:
        """The copy writes for its lane, as soon as it is asked for and until it has landed."""
        state = self.state
        if not state.sanitise:
            return
        width = state.granule
        first, n_cells = copy.target_at[:, 0] // width, copy.target_at.shape[1] // width
        try:
            state.shared_races.access(
                copy.lanes, first, width, n_cells, True, copy.site, state.shown_site
            )
        except Fault as fault:
            fault.address, fault.allocation, fault.offset = copy.target.shown(fault.address or 0)
            raise

    def _shared(self, store: Any) -> bool:
        return store is self.state.space("shared")

    def check(self, sel: Sel, space: Any, cells: Array, n_bytes: int, width: int,
              writes: bool) -> None:
        """Fault when an access touches the destination of a pending copy."""
        if self._unfenced is not None and writes:
            self._unfenced[cells[:, None] * width + np.arange(n_bytes)] = True
        if not self.pending:
            return
        places = cells[:, None] * width + np.arange(n_bytes)
        bad = self._busy[places].any(axis=1)
        if not bad.any():
            return
        first = int(places[int(np.argmax(bad))][0])
        address, name, offset = space.shown(first)
        raise Fault("async", "touches the destination of a copy that nobody waited for",
                    self.state.lanes.index(sel)[bad], address, name, offset)

    def fence(self, sel: Sel) -> None:
        """Ordinary stores that these lanes made, or know of, are visible to copies now."""
        if self._unfenced is None:
            return
        state, races = self.state, self.state.shared_races
        places = np.flatnonzero(self._unfenced)
        granules = places // races.granule
        writer = np.maximum(races.write_thread[granules], 0)
        cta_of_place = places // max(1, state.space("shared").stride)
        for cta, warp in state.clocks.warps(sel):
            mine = cta_of_place == cta
            seen = state.clocks.own(cta, warp)[writer // 32] >= races.write_clock[granules]
            self._unfenced[places[mine & seen]] = False

    def at_exit(self, index: Array) -> None:
        """Fault when lanes leave with copies outstanding."""
        if not self.pending or not self.state.sanitise:
            return
        for copy in self.pending:
            bad = np.isin(copy.lanes, index)
            # Bulk copies that report to an mbarrier are somebody else's to wait for.
            if bad.any() and copy.how != BARRIER:
                raise Fault("async", "leaves with a copy outstanding, started at "
                            f"{self.state.shown_site(copy.site)}", copy.lanes[bad])

    def at_end(self) -> None:
        """Fault when the batch ends with copies that nobody waited for."""
        if self.pending and self.state.sanitise:
            copy = self.pending[0]
            self.state.site = copy.site
            raise Fault("async", "nobody waited for this copy", copy.lanes)

    def advance(self) -> bool:
        """Let something land because everybody waits; False when nothing is pending."""
        if self._later:
            self._later.pop(0)()
            return True
        reported = [copy for copy in self.pending if copy.how == BARRIER]
        if not reported:
            return False
        copy = self.state.random.choice(reported) if self.state.shuffled else reported[0]
        self._take(copy, np.ones(len(copy.lanes), bool))
        return True
