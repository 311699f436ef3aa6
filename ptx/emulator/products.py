"""Owns asynchronous products that have been asked for and not yet waited for: those of wgmma.

It must not know instruction syntax, nor how a product is computed. A result appears when a wait
covers it; with a seed, lots decide which ones are there at once. Either way the registers and the
shared memory are lent until the wait. Contract: the PTX ISA's wgmma and its groups.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.held import Held
from ptx.emulator.lanes import Sel
from ptx.emulator.syntax import Kernel
from ptx.numerics import Array

# A warpgroup: four warps, the first of a rank that is a multiple of 4.
GROUP_LANES = 128
Compute = Callable[[Array, Array, Array], None]


@dataclass(eq=False)
class Product:
    """One wgmma of one or more warpgroups: lanes [groups * 128], the rest with a row for each.

    `places` are byte places of runs of 16 bytes that it reads; `keeps` tells whether it adds to D.
    `rows_of_d` and `rows_of_a` are its registers, as `held` has them.
    """

    lanes: Array
    places: Array
    keeps: Array
    compute: Compute
    rows_of_d: Array
    rows_of_a: Array
    site: int
    number: int = 0
    group: Array | None = None
    done: bool = False

    def part(self, chosen: Array) -> "Product":
        """The same for some of the warpgroups."""
        assert self.group is not None
        return replace(
            self, lanes=self.lanes.reshape(-1, GROUP_LANES)[chosen].reshape(-1),
            places=self.places[chosen], keeps=self.keeps[chosen], group=self.group[chosen],
        )

    def run(self) -> None:
        """Compute, once."""
        if not self.done:
            self.done = True
            self.compute(self.lanes, self.places, self.keeps)


class Products:
    """The pending products of a batch."""

    def __init__(self, state: Any, kernel: Kernel) -> None:
        self.state = state
        self.held = Held(kernel, state.registers, self._shown, state.sanitise)
        # Groups that a lane has closed.
        self._closed = np.zeros(state.lanes.n_lanes, np.int32)
        self._pending: list[Product] = []
        self._n = 0

    def reset(self) -> None:
        """Nothing is pending."""
        self._pending.clear()
        self._closed.fill(0)
        self.held.reset()

    def start(self, product: Product, shape: str) -> None:
        """A product was asked for, of accumulators of a shape; Fault when it may not be yet."""
        state, lanes = self.state, product.lanes
        self._n += 1
        product.number = self._n
        product.group = self._closed[lanes[::GROUP_LANES]]
        warps = lanes[::32].reshape(-1, 4)
        state.claims.lend(warps, product.places)
        self.held.hold(lanes, product.rows_of_d, self._n, shape)
        self.held.hold(lanes, product.rows_of_a, self._n, "")
        self._pending.append(product)
        if state.shuffled and state.random.getrandbits(1):
            self._run_up_to(product)

    def commit(self, sel: Sel) -> None:
        """The lanes' products so far form a group."""
        self._closed[sel] += 1

    def wait(self, sel: Sel, n_open: int) -> None:
        """End all but the newest n_open groups of these lanes; what is in no group runs on."""
        chosen = np.zeros(self.state.lanes.n_lanes, bool)
        chosen[sel] = True
        for product in list(self._pending):
            assert product.group is not None
            first = product.lanes[::GROUP_LANES]
            covered = chosen[first] & (product.group < self._closed[first] - n_open)
            if not covered.any():
                continue
            if not covered.all():
                at = self._pending.index(product)
                rest, product = product.part(~covered), product.part(covered)
                self._pending[at : at + 1] = [product, rest]
            self._run_up_to(product)
            self._pending.remove(product)
            self._end(product)

    def _end(self, product: Product) -> None:
        for rows in (product.rows_of_d, product.rows_of_a):
            self.held.release(product.lanes, rows, product.number)
        self.state.claims.give_back(
            product.lanes[::32].reshape(-1, 4), product.places, product.site
        )
        self.state.progress += 1

    def _run_up_to(self, product: Product) -> None:
        """Products run in the order in which they were asked for."""
        for other in self._pending:
            other.run()
            if other is product:
                return

    def at_exit(self, index: Array) -> None:
        """Fault when lanes leave with products outstanding."""
        for product in self._pending if self.state.sanitise else ():
            bad = np.isin(product.lanes, index)
            if bad.any():
                raise Fault("async", f"leaves with {self._shown(product.number)} outstanding",
                            product.lanes[bad])

    def reader_of(self, cells: Array) -> str:
        """Who reads runs of shared memory, for messages."""
        for product in self._pending:
            if np.isin(cells, product.places >> 4).any():
                return self._shown(product.number)
        return "a wgmma"

    def _shown(self, number: int) -> str:
        for product in self._pending:
            if product.number == number:
                return f"wgmma.mma_async in {self.state.shown_site(product.site)}"
        return "a wgmma"
