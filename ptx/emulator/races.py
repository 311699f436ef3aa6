"""Owns finding races: who last read and wrote each granule of memory, judged by the clocks.

It must not know instructions. A granule is the narrowest access of the kernel to that space, so
that neighbours never blame each other. Of one warp, lanes are ordered by bar.warp.sync and by
barriers; between CTAs, global memory by fences with flags.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ptx.emulator.clocks import Clocks
from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Lanes, Sel
from ptx.numerics import Array

NOBODY, SEVERAL = -1, -2
Site = Callable[[int], str]


class SharedRaces:
    """Last accesses to the shared memory of every CTA of a batch."""

    def __init__(self, lanes: Lanes, clocks: Clocks, n_bytes: int, granule: int) -> None:
        self.lanes, self.clocks, self.granule = lanes, clocks, granule
        n = -(-n_bytes // granule)
        self.write_thread = np.full(n, NOBODY, np.int16)
        self.write_clock = np.zeros(n, np.int32)
        self.write_site = np.zeros(n, np.int32)
        self.read_clock = np.zeros((n, lanes.n_warps), np.int32)
        self.read_thread = np.full((n, lanes.n_warps), NOBODY, np.int16)
        self.read_site = np.zeros(n, np.int32)
        # Clocks of reads that products made, where a kernel has some.
        self._product_clock: Array | None = None

    def reset(self) -> None:
        """Nobody touched anything."""
        self.write_thread.fill(NOBODY)
        self.write_clock.fill(0)
        self.read_clock.fill(0)
        self._product_clock = None

    def ordinary_read_clock(self, granules: Array) -> Array:
        """When each warp last read some granules by loads, [granules, warps]; 0 for never."""
        clock: Array = self.read_clock[granules]
        if self._product_clock is None:
            return clock
        return np.where(clock == self._product_clock[granules], 0, clock)

    def forget_writes(self, places: Array) -> None:
        """No thread wrote these bytes, whole granules of them: a copy did."""
        self.write_thread[places[..., :: self.granule] // self.granule] = NOBODY

    def access(
        self, sel: Sel, cells: Array, width: int, n: int, writes: bool, site: int, shown: Site
    ) -> None:
        """Record an access of n cells of `width` bytes; Fault of kind race names both sites."""
        per = width * n // self.granule
        at = cells * (width // self.granule)
        lanes = self.lanes
        thread, warp, cta = lanes.thread[sel], lanes.warp[sel], lanes.cta[sel]
        if per > 1:
            at = at[:, None] + np.arange(per)
            thread, warp, cta = thread[:, None], warp[:, None], cta[:, None]
        thread16 = np.broadcast_to(thread.astype(np.int16), at.shape)
        known = self.clocks.known
        clock = known[cta, warp, warp] + 1
        last = self.write_thread[at]
        seen = known[cta, warp, np.maximum(last, 0) >> 5]
        bad = (last != thread) & (last >= 0) & (self.write_clock[at] > seen)
        if bad.any():
            self._blame(sel, at, bad, writes, "written", self.write_site, shown)
        if writes:
            self._check_readers(sel, at, thread, warp, cta, shown)
            self.write_thread[at] = thread16
            self.write_clock[at] = clock
            twice = self.write_thread[at] != thread16
            self.write_site[at] = site
            if twice.any():
                self._blame(sel, at, twice, writes, "written", self.write_site, shown)
            return
        self._record_read(at, thread16, warp, clock, site)

    def read_by_warps(
        self, warps: Array, places: Array, lanes: Array, site: int, shown: Site
    ) -> None:
        """Whole warps [w] of one CTA, given by `lanes` of theirs, read runs of 16 bytes."""
        runs = np.unique(places)
        per = 16 // self.granule
        at = (runs[:, None] // self.granule + np.arange(per)).reshape(-1)
        cta = self.lanes.cta[lanes[0]]
        known = self.clocks.known[cta, warps]
        last = self.write_thread[at]
        late = self.write_clock[at] > known[:, np.maximum(last, 0) >> 5]
        bad = (late & (last >= 0)).T
        if bad.any():
            which = int(np.argmax(bad.any(axis=0)))
            self._blame(np.full(len(at), lanes[which]), at, bad[:, which], False, "written",
                        self.write_site, shown)
        clock = known[np.arange(len(warps)), warps] + 1
        self.read_clock[at[:, None], warps] = clock
        if self._product_clock is None:
            self._product_clock = np.zeros_like(self.read_clock)
        self._product_clock[at[:, None], warps] = clock
        # No thread's later write is in order with this by its being the reader's own.
        self.read_thread[at[:, None], warps] = SEVERAL
        self.read_site[at] = site

    def _record_read(
        self, at: Array, thread: Array, warp: Array, clock: Array, site: int
    ) -> None:
        again = self.read_clock[at, warp] == clock
        other = again & (self.read_thread[at, warp] != thread)
        self.read_thread[at, warp] = np.where(other, np.int16(SEVERAL), thread)
        clash = self.read_thread[at, warp] != thread
        if clash.any():
            rows = np.broadcast_to(warp, at.shape)[clash]
            self.read_thread[at[clash], rows] = SEVERAL
        self.read_clock[at, warp] = clock
        self.read_site[at] = site

    def _check_readers(
        self, sel: Sel, at: Array, thread: Array, warp: Array, cta: Array, shown: Site
    ) -> None:
        late = self.read_clock.take(at, axis=0) > self.clocks.of_warps[cta, warp]
        # A lane's own reads before its write are in order.
        warps = np.broadcast_to(warp, at.shape)
        place = (*np.indices(at.shape, sparse=True), warps)
        late[place] &= self.read_thread[at, warps] != thread
        bad = np.asarray(late.any(axis=-1))
        if bad.any():
            self._blame(sel, at, bad, True, "read", self.read_site, shown)

    def _blame(
        self, sel: Sel, at: Array, bad: Array, writes: bool, how: str, sites: Array, shown: Site
    ) -> None:
        lanes = self.lanes.index(sel)
        place = np.unravel_index(int(np.argmax(bad)), bad.shape)
        byte = int(at[place]) * self.granule
        lane = lanes[place[0]]
        other = shown(int(sites[at[place]]))
        verb = "writes" if writes else "reads"
        raise Fault(
            "race", f"{verb} what another thread has {how} at {other} with no order between them",
            np.array([lane]), byte, "", None, fatal=False,
        )


class GlobalRaces:
    """Last accesses by whole CTAs to the bytes `first` to `end` of one allocation."""

    def __init__(self, first: int, end: int, granule: int) -> None:
        self.granule = granule
        self._first = first // granule
        n = (end - first) // granule
        self.write_cta = np.full(n, NOBODY, np.int32)
        self.read_cta = np.full(n, NOBODY, np.int32)
        self.write_clock = np.zeros(n, np.int32)
        self.read_clock = np.zeros(n, np.int32)
        self.write_site = np.zeros(n, np.int32)
        self.read_site = np.zeros(n, np.int32)

    def access(
        self, state: Any, sel: Sel, where: Any, cells: Array, width: int, n: int, writes: bool
    ) -> None:
        """Record an access; Fault of kind race names both sites."""
        lanes: Lanes = state.lanes
        clocks: Clocks = state.clocks
        per = width * n // self.granule
        at = cells * (width // self.granule) - self._first
        local = lanes.cta[sel][where]
        inside = (at >= 0) & (at + per <= len(self.write_cta))
        if not inside.all():
            where = np.arange(len(lanes.numbers[sel]))[where][inside]
            at, local = at[inside], local[inside]
            if not len(at):
                return
        if per > 1:
            at, local = at[:, None] + np.arange(per), local[:, None]
        cta = np.broadcast_to(local + lanes.first_cta, at.shape)
        clock: Any = clocks.grid[local, local] + 1 if clocks.among_ctas else 1
        bad = self._unseen(self.write_cta[at], self.write_clock[at], cta, local, clocks)
        how = "written"
        if writes and not bad.any():
            bad = self._unseen(self.read_cta[at], self.read_clock[at], cta, local, clocks)
            how = "read"
        if writes and not bad.any():
            self.write_cta[at] = cta
            self.write_clock[at] = clock
            self.write_site[at] = state.site
            bad, how = self.write_cta[at] != cta, "written"
        if bad.any():
            self._blame(state, sel, where, at, bad, how, writes)
        if not writes:
            old = self.read_cta[at]
            mixed = (old != NOBODY) & (old != cta)
            self.read_cta[at] = np.where(mixed, SEVERAL, cta)
            clash = self.read_cta[at] != cta
            if clash.any():
                self.read_cta[at[clash]] = SEVERAL
            self.read_clock[at] = clock
            self.read_site[at] = state.site

    def _unseen(
        self, last: Array, clock: Array, cta: Array, local: Array, clocks: Clocks
    ) -> Array:
        other = (last != cta) & (last != NOBODY)
        if not clocks.among_ctas:
            return np.asarray(other)
        # Of several readers only the last is remembered: those before it get the benefit.
        seen = clocks.grid[local, np.maximum(last, 0)]
        return np.asarray(other & (last != SEVERAL) & (clock > seen))

    def _blame(
        self, state: Any, sel: Sel, where: Any, at: Array, bad: Array, how: str, writes: bool
    ) -> None:
        place = np.unravel_index(int(np.argmax(bad)), bad.shape)
        lane = state.lanes.index(sel)[where][place[0]]
        verb = "writes" if writes else "reads"
        sites = self.write_site if how == "written" else self.read_site
        raise Fault(
            "race",
            f"{verb} what another CTA has {how} at {state.shown_site(int(sites[at[place]]))} "
            "with no order between them",
            np.array([lane]), (int(at[place]) + self._first) * self.granule, "", None, fatal=False,
        )
