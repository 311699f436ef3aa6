"""Owns the sanitiser's rules for bytes that asynchronous copies and products read or write.

It must not know instructions, nor when copies land. From the asking for a copy until somebody has
waited for it, its destination is nobody else's, and nobody may write its source. The async proxy
sees ordinary stores to shared memory after a proxy fence alone, and waits for ordinary loads only
where who made them has fenced them: a load that is in no register yet may find what a copy brought,
though its warp has said that the place is free.
"""

from typing import Any

import numpy as np

from ptx.emulator.copies import BARRIER, GROUP, Copy
from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Sel
from ptx.numerics import Array

# Products read shared memory by runs of 16 bytes.
RUN, RUN_BITS = 16, 4


class Claims:
    """What the copies of `completions` hold."""

    def __init__(self, state: Any, completions: Any) -> None:
        self.state, self._completions = state, completions
        self._busy = np.zeros(len(state.space("shared").data), bool)
        # Bytes of shared memory that ordinary stores wrote and no proxy fence has shown yet.
        self.unfenced: Array | None = None
        # The clock of each CTA's warps at their last proxy fence.
        self._fenced_clock = np.zeros((state.lanes.n_ctas, state.lanes.n_warps), np.int32)
        # How many products read each run of 16 bytes of shared memory, and how many runs in all.
        self._lent = np.zeros(0, np.int32)
        self._n_lent = 0

    def reset(self) -> None:
        """Nothing is held."""
        self._busy.fill(False)
        self._lent.fill(0)
        self._n_lent = 0
        self._fenced_clock.fill(0)
        if self.unfenced is not None:
            self.unfenced.fill(False)

    def watch_proxy(self) -> None:
        """The kernel has copies that read shared memory by another path: watch for fences."""
        self.unfenced = np.zeros(len(self._busy), bool)

    def watch_products(self) -> None:
        """The kernel has products that read shared memory: they too need fences."""
        self.watch_proxy()
        self._lent = np.zeros(len(self._busy) // RUN + 1, np.int32)

    # What products do

    def lend(self, warps: Array, places: Array) -> None:
        """Products read runs [products, runs] of shared memory until `give_back`.

        `warps` are a lane of each warp of their warpgroups. Fault when they may not read now.
        """
        np.add.at(self._lent, places >> RUN_BITS, 1)
        self._n_lent += places.size
        if not self.state.sanitise:
            return
        space, completions = self.state.space("shared"), self._completions
        copies = completions.pending or completions.reports.active
        for lanes, runs in zip(warps, places, strict=True):
            at = runs[:, None] + np.arange(RUN)
            blamed = np.repeat(lanes[:1], len(at))
            for lane in lanes if copies else ():
                self._check(np.repeat(lane, len(at)), space, at, False)
            bad = space.valid[at].min(axis=1) == 0
            if bad.any():
                raise self._at("uninitialised", "reads shared memory that nobody wrote", blamed,
                               space, at, bad)
            if self.unfenced is not None and (bad := self.unfenced[at].any(axis=1)).any():
                raise self._at("async", "reads shared memory that ordinary stores or cp.async "
                               "wrote, with no proxy fence between", blamed, space, at, bad)
        self._read(warps, places, self.state.site)

    def give_back(self, warps: Array, places: Array, site: int) -> None:
        """Somebody has waited for products."""
        np.subtract.at(self._lent, places >> RUN_BITS, 1)
        self._n_lent -= places.size
        if self.state.sanitise:
            self._read(warps, places, site)

    def _read(self, warps: Array, places: Array, site: int) -> None:
        state = self.state
        for lanes, runs in zip(warps, places, strict=True):
            try:
                state.shared_races.read_by_warps(
                    state.lanes.warp[lanes], runs, lanes, site, state.shown_site
                )
            except Fault as fault:
                state.complete(fault, state.space("shared"))
                raise

    # What copies do

    def take(self, copy: Copy) -> None:
        """A copy is asked for; Fault when it may not read its source, or write its target, now."""
        if self.state.sanitise:
            self._check(copy.lanes, copy.target, copy.target_at, True)
            self._reads_fenced(copy)
            self.access(copy, False)
            if copy.source is not None:
                self._check(copy.lanes, copy.source, copy.source_at, False)
                self._fenced(copy)
                self.access(copy, True)
        if self._shared(copy.target):
            self._busy[copy.target_at] = True

    def end(self, copy: Copy) -> None:
        """Its lanes have waited: they wrote the target, as far as others are concerned."""
        if self._shared(copy.target):
            self._busy[copy.target_at] = False
            if copy.how == GROUP and self.unfenced is not None:
                # cp.async is of the generic proxy, as stores are.
                self.unfenced[copy.target_at] = True
        self.access(copy, False)

    def report(self, copy: Copy) -> None:
        """An mbarrier was told: no thread wrote the target, and who may touch it is told there."""
        self._busy[copy.target_at] = False
        self.state.shared_races.forget_writes(copy.target_at)

    def access(self, copy: Copy, source: bool) -> None:
        """The copy's lanes read its source, or write its target, as far as races are concerned."""
        store, at = (copy.source, copy.source_at) if source else (copy.target, copy.target_at)
        if store is not None and self.state.sanitise:
            self.state.watch_copy(store, copy.lanes, at, not source, copy.site)

    def _fenced(self, copy: Copy) -> None:
        if not self._shared(copy.source) or self.unfenced is None:
            return
        bad = self.unfenced[copy.source_at].any(axis=1)
        if bad.any():
            raise Fault("async", "an asynchronous copy reads shared memory that ordinary stores "
                        "wrote, with no proxy fence between", copy.lanes[bad])

    def _reads_fenced(self, copy: Copy) -> None:
        # cp.async is of the generic proxy, as loads are.
        if not self._shared(copy.target) or copy.how == GROUP:
            return
        state, races = self.state, self.state.shared_races
        # Whole granules, as copies write runs of 16 bytes.
        places = (copy.target_at[..., :: races.granule] // races.granule).reshape(-1)
        cta = places * races.granule // max(1, state.space("shared").stride)
        late = races.ordinary_read_clock(places) > self._fenced_clock[cta]
        if late.any():
            site = state.shown_site(int(races.read_site[places[int(np.argmax(late.any(axis=1)))]]))
            raise Fault("async", "an asynchronous copy writes shared memory that ordinary loads "
                        f"read at {site}, with no proxy fence of theirs behind", copy.lanes[:1])

    # What threads do

    def check(
        self, sel: Sel, store: Any, cells: Array, n_bytes: int, width: int, writes: bool
    ) -> None:
        """Fault when an access meets a copy; `cells` of `width` bytes begin `n_bytes` each."""
        shared = self._shared(store)
        if writes and shared and self.unfenced is not None:
            self.unfenced[cells[:, None] * width + np.arange(n_bytes)] = True
        if self._completions.pending or self._completions.reports.active or self._n_lent:
            self._check(sel, store, cells[:, None] * width + np.arange(n_bytes), writes)

    def fence(self, sel: Sel) -> None:
        """Ordinary stores that these lanes made, or know of, are visible to copies now, and their
        loads have been made."""
        state, races = self.state, self.state.shared_races
        if state.sanitise:
            for cta, warp in state.clocks.warps(sel):
                self._fenced_clock[cta, warp] = state.clocks.known[cta, warp, warp] + 1
        if self.unfenced is None:
            return
        places = np.flatnonzero(self.unfenced)
        granules = places // races.granule
        writer = np.maximum(races.write_thread[granules], 0)
        cta_of_place = places // max(1, state.space("shared").stride)
        for cta, warp in state.clocks.warps(sel):
            mine = cta_of_place == cta
            seen = state.clocks.own(cta, warp)[writer // 32] >= races.write_clock[granules]
            self.unfenced[places[mine & seen]] = False

    def at_exit(self, index: Array) -> None:
        """Fault when lanes leave with copies outstanding."""
        for copy in self._completions.pending if self.state.sanitise else ():
            bad = np.isin(copy.lanes, index)
            # Copies that report to an mbarrier are somebody else's to wait for; those that have
            # read their source end with the grid.
            if not bad.any() or copy.how == BARRIER or not copy.lent:
                continue
            bad &= ~self._completions.promised(copy)
            if bad.any():
                raise Fault("async", "leaves with a copy outstanding, started at "
                            f"{self.state.shown_site(copy.site)}", copy.lanes[bad])

    def _shared(self, store: Any) -> bool:
        return store is self.state.space("shared")

    def _check(self, sel: Sel, store: Any, places: Array, writes: bool) -> None:
        """The same for rows of byte places."""
        reports = self._completions.reports
        if self._shared(store):
            busy = np.asarray(self._busy[places].any(axis=1))
            if busy.any():
                raise self._met(sel, store, places, busy, "touches the destination of")
            reports.check(sel, places)
            if writes and self._n_lent and (lent := self._lent[places >> RUN_BITS] > 0).any():
                bad = lent.any(axis=1)
                reader = self.state.products.reader_of(places[bad] >> RUN_BITS)
                raise self._at("async", f"writes what {reader} reads, for which nobody waited",
                               sel, store, places, bad)
        else:
            for copy in self._completions.pending:
                bad = copy.target_meets(store, places)
                if bad is not None:
                    raise self._met(sel, store, places, bad, "touches the destination of")
        if not writes:
            return
        for copy in (*self._completions.pending, *(report.copy for report in reports.unseen)):
            bad = copy.source_meets(store, places) if copy.lent else None
            if bad is not None:
                raise self._met(sel, store, places, bad, "writes the source of")

    def _met(self, sel: Sel, store: Any, places: Array, bad: Array, verb: str) -> Fault:
        return self._at("async", f"{verb} a copy that nobody waited for", sel, store, places, bad)

    def _at(
        self, kind: str, message: str, sel: Sel, store: Any, places: Array, bad: Array
    ) -> Fault:
        first = int(places[int(np.argmax(bad))][0])
        fault = Fault(kind, message, self.state.lanes.index(sel)[bad], first, "")
        self.state.complete(fault, store)
        return fault
