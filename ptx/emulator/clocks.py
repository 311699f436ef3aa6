"""Owns what each warp knows of the others: vector clocks, moved on by barriers, fences and flags.

It must not know memory contents. `known[c, w, v]` is the newest step of warp v of CTA c that warp w
has seen finished; a warp's entry of its own is one less than its clock, because its lanes do not
see each other's newest accesses either. Columns past the warps are events: things that no warp
does, such as a phase of an mbarrier that copies completed. `grid` is the same between whole CTAs,
for global memory.
"""

import numpy as np

from ptx.emulator.lanes import Lanes, Sel
from ptx.numerics import Array


class Clocks:
    """Clocks of a batch; `among_ctas` keeps those between CTAs, for kernels that use flags."""

    def __init__(self, lanes: Lanes, among_ctas: bool, n_events: int = 0) -> None:
        self.lanes = lanes
        n, w = lanes.n_ctas, lanes.n_warps
        self.n_columns = w + n_events
        self.known = np.zeros((n, w, self.n_columns), np.int32)
        self.of_warps = self.known[:, :, :w]
        self.grid = np.zeros((n, n) if among_ctas else (1, 1), np.int32)
        self.among_ctas = among_ctas
        self._identity = np.eye(w, self.n_columns, dtype=np.int32)
        self.reset()

    def reset(self) -> None:
        """All clocks at one: nobody has seen anybody's first step."""
        self.known.fill(0)
        self.grid.fill(0)
        # What a warp knew at its last fence, and what it may learn at its next one.
        self._fenced: dict[tuple[int, int], tuple[Array, Array]] = {}
        self._pending: dict[tuple[int, int], tuple[Array, Array]] = {}
        self._flags: dict[int, tuple[dict[int, Array], Array]] = {}

    def warps(self, sel: Sel) -> list[tuple[int, int]]:
        """The (CTA, warp) pairs of selected lanes."""
        numbers = np.unique(self.lanes.global_warp[sel])
        return [divmod(int(n), self.lanes.n_warps) for n in numbers]

    def step_warps(self, sel: Sel) -> None:
        """The lanes of these warps see each other's accesses: bar.warp.sync."""
        numbers = np.unique(self.lanes.global_warp[sel])
        cta, warp = np.divmod(numbers, self.lanes.n_warps)
        self.known[cta, warp, warp] += 1

    def own(self, cta: int, warp: int) -> Array:
        """What a warp knows, its own steps included."""
        row: Array = self.known[cta, warp] + self._identity[warp]
        return row

    def join(self, cta: int, warp: int, row: Array) -> None:
        """A warp learns what `row` says."""
        np.maximum(self.known[cta, warp], row, out=self.known[cta, warp])

    def has_seen(self, sel: Sel, event: Array | int, at_least: Array | int) -> Array:
        """For each lane whether its warp knows that an event came as far as `at_least`."""
        cta, warp = self.lanes.cta[sel], self.lanes.warp[sel]
        column = self.lanes.n_warps + np.asarray(event)
        if self.n_columns == self.lanes.n_warps:
            return np.zeros((len(cta), *column.shape[1:]), bool)
        if column.ndim > 1:
            cta, warp = cta[:, None], warp[:, None]
        return np.asarray(self.known[cta, warp, column] >= at_least)

    def happened(self, sel: Sel, event: int, how_far: int) -> None:
        """The warps of selected lanes know that an event came as far as `how_far`."""
        column = self.lanes.n_warps + event
        for cta, warp in self.warps(sel):
            self.known[cta, warp, column] = max(how_far, self.known[cta, warp, column])

    def join_all(self) -> None:
        """In every CTA all warps learn everything: a barrier that all pass together."""
        newest = (self.known + self._identity).max(axis=1)
        self.known[...] = newest[:, None, :]

    def _grid_row(self, cta: int) -> Array:
        row: Array = self.grid[cta if self.among_ctas else 0].copy()
        if self.among_ctas:
            row[cta] += 1
        return row

    def fence(self, sel: Sel) -> None:
        """A fence of selected lanes: what came before may be published, what was read is seen."""
        for cta, warp in self.warps(sel):
            key = cta, warp
            if key in self._pending:
                self._learn(cta, warp, *self._pending.pop(key))
            self._fenced[key] = self.own(cta, warp), self._grid_row(cta)
            self.known[cta, warp, warp] += 1
            if self.among_ctas:
                self.grid[cta, cta] += 1

    def _learn(self, cta: int, warp: int, row: Array, grid: Array) -> None:
        self.join(cta, warp, row)
        if self.among_ctas:
            np.maximum(self.grid[cta], grid, out=self.grid[cta])

    def strong(
        self, sel: Sel, places: Array, reads: bool, writes: bool, order: str
    ) -> None:
        """Atomic or ordered accesses to generic addresses: flags that carry knowledge."""
        if order in ("release", "acq_rel"):
            self.fence(sel)
        if not self._fenced and not self._flags:
            return
        warps = self.lanes.global_warp[sel].astype(np.int64)
        for number, at in {*zip(warps.tolist(), places.tolist(), strict=True)}:
            cta, warp = divmod(number, self.lanes.n_warps)
            if reads:
                self._acquire(cta, warp, at, order in ("acquire", "acq_rel"))
            if writes:
                self._release(cta, warp, at)

    def _acquire(self, cta: int, warp: int, key: int, at_once: bool) -> None:
        if key not in self._flags:
            return
        rows, grid = self._flags[key]
        row = rows.get(cta, np.zeros(self.n_columns, np.int32))
        if self.n_columns > self.lanes.n_warps:
            # The first event is of the whole grid, the others of one CTA.
            row = row.copy()
            row[self.lanes.n_warps] = max(r[self.lanes.n_warps] for r in rows.values())
        if at_once:
            self._learn(cta, warp, row, grid)
            return
        old = self._pending.get((cta, warp))
        if old is not None:
            row, grid = np.maximum(row, old[0]), np.maximum(grid, old[1])
        self._pending[cta, warp] = row, grid

    def _release(self, cta: int, warp: int, key: int) -> None:
        if (cta, warp) not in self._fenced:
            return
        row, grid = self._fenced[cta, warp]
        rows, old = self._flags.get(key, ({}, np.zeros_like(grid)))
        rows[cta] = np.maximum(rows[cta], row) if cta in rows else row
        self._flags[key] = rows, np.maximum(old, grid)
