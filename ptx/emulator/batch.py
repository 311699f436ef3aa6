"""Owns a kernel bound to a batch of CTAs: decoded steps, spaces, registers, and what they share.

It must not know scheduling. Steps were built for one geometry; the same batch serves one group of
CTAs after the other. Instruction families see it as `state`. Long because all that they ask for is
in one place.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from ptx.emulator import families
from ptx.emulator.barriers import Barriers
from ptx.emulator.clocks import Clocks
from ptx.emulator.completions import Completions
from ptx.emulator.decode import Build, Step, decode
from ptx.emulator.dependency import Dependency
from ptx.emulator.errors import Fault
from ptx.emulator.flow import maybe_unwritten
from ptx.emulator.lanes import Lanes, Sel
from ptx.emulator.mbarriers import MBarriers
from ptx.emulator.memory import VALID, Block, Memory
from ptx.emulator.outputs import Outputs
from ptx.emulator.products import Products
from ptx.emulator.races import GlobalRaces, SharedRaces
from ptx.emulator.registers import RegisterFile
from ptx.emulator.spaces import WINDOWS, Params, Space, in_window
from ptx.emulator.syntax import Kernel, Module
from ptx.emulator.traits import communicates, n_events, narrowest
from ptx.numerics import Array

assert families.LOADED


class Batch:
    """`kernel` of `module` decoded for `lanes`."""

    def __init__(
        self, module: Module, kernel: Kernel, lanes: Lanes, memory: Memory, dynamic_bytes: int,
        constants: dict[str, int], sanitise: bool,
    ) -> None:
        self.name, self.kernel, self.lanes, self.memory = kernel.name, kernel, lanes, memory
        self.sanitise = sanitise
        self.labels, self.limits = kernel.labels, kernel.limits
        self.params = Params()
        self.n_param_bytes = max((p.offset + p.n_bytes for p in kernel.params), default=0)
        self._constants = constants
        variables = [*module.variables, *kernel.variables]
        used: dict[str, Array] = {"shared": lanes.cta, "local": lanes.numbers}
        self._spaces = {
            name: Space(name, [v for v in variables if v.space == name], dynamic_bytes, lanes,
                        owner, lanes.n_ctas if name == "shared" else lanes.n_lanes)
            for name, owner in used.items()
        }
        self.among_ctas = communicates(kernel)
        self.clocks = Clocks(lanes, self.among_ctas, n_events(kernel))
        self.granule = narrowest(kernel)
        shared_bytes = len(self._spaces["shared"].data)
        self.shared_races = SharedRaces(lanes, self.clocks, shared_bytes, self.granule)
        self.barriers = Barriers(lanes, self.clocks)
        self.completions = Completions(self)
        self.claims = self.completions.claims
        self.mbarriers = MBarriers(self)
        self.registers = RegisterFile(kernel.registers, lanes)
        self.products = Products(self, kernel)
        self._unwritten = maybe_unwritten(kernel)
        self._scratch: dict[str, Array] = {}
        self.outputs: Outputs | None = None
        self.dependency: Dependency | None = None
        self.random = random.Random(0)
        self.shuffled = False
        self.progress = self.site = self.n_steps = 0
        self.collect: Callable[[Fault], None] | None = None
        self.code: list[Step] = [
            decode(source, self.registers, lanes, self) for source in kernel.code
        ]

    def start(self, first_cta: int) -> None:
        """Forget everything of the CTAs before, and stand before those from `first_cta`."""
        self.lanes.start(first_cta)
        self.registers.reset(self._unwritten)
        for space in self._spaces.values():
            space.reset()
        for part in (self.clocks, self.shared_races, self.barriers, self.completions,
                     self.mbarriers, self.products):
            part.reset()

    # What instruction families ask

    def space(self, name: str) -> Space:
        """The shared or local space."""
        return self._spaces[name]

    def address_of(self, name: str, build: Build) -> int:
        """The address of a variable or parameter in its own space."""
        for space in self._spaces.values():
            if name in space.offsets:
                return space.offsets[name]
        for param in self.kernel.params:
            if param.name == name:
                return param.offset
        if name in self._constants:
            return self._constants[name]
        raise build.refuse(f"{name} is not declared")

    def window_of(self, name: str) -> int:
        """What turns a variable's address into a generic one."""
        for space_name, space in self._spaces.items():
            if name in space.offsets:
                return WINDOWS[space_name]
        return 0

    def in_window(self, address: Array, space: str) -> Array:
        """Which generic addresses lie in a space."""
        return in_window(address, space)

    def clock(self, name: str) -> Callable[[], int] | None:
        """A source of values for the clock registers: executed steps."""
        if name.startswith(("%clock", "%globaltimer")):
            return lambda: self.n_steps & 0xFFFFFFFF
        return None

    def scratch(self, name: str) -> Array:
        """A hidden predicate of every lane."""
        return self._scratch.setdefault(name, np.zeros(self.lanes.n_lanes, bool))

    def order(self, n: int) -> Array:
        """The order in which n lanes take turns."""
        numbers = list(range(n))
        if self.shuffled:
            self.random.shuffle(numbers)
        return np.array(numbers)

    def name_of(self, address: int, space: str) -> tuple[str | None, int | None]:
        """Allocation and offset of an address, for messages."""
        if space in self._spaces:
            _, name, offset = self._spaces[space].shown(address)
            return name, offset
        near = self.memory.nearest(address)
        return near if near else (None, None)

    def shown_site(self, site: int) -> str:
        """A step for messages."""
        source = self.kernel.code[site]
        return f"line {source.line} `{source.text}`"

    # The sanitiser

    def watch(
        self, store: Any, sel: Sel, where: Any, cells: Array, width: int, n: int, writes: bool,
        strong: bool,
    ) -> None:
        """Every access comes by here: races, and bytes that an asynchronous copy still owns."""
        if not self.sanitise:
            return
        lanes = sel if isinstance(where, slice) else self.lanes.index(sel)[where]
        try:
            if isinstance(store, Space):
                if store.name != "shared":
                    return
                self.claims.check(lanes, store, cells, width * n, width, writes)
                if not strong:
                    self.shared_races.access(
                        lanes, cells, width, n, writes, self.site, self.shown_site
                    )
                return
            self.claims.check(lanes, store, cells, width * n, width, writes)
            if self.dependency is not None:
                where_all = self.lanes.index(lanes)
                self.dependency.check(self, store, where_all, cells, width * n, width, writes)
            if not strong:
                self._watch_global(store, sel, where, cells, width, n, writes)
        except Fault as fault:
            self.complete(fault, store)
            if self.collect is None or fault.fatal:
                raise
            self.collect(fault)

    def watch_copy(
        self, store: Any, lanes: Array, places: Array, writes: bool, site: int
    ) -> None:
        """A copy's access for its lanes to rows of bytes [lanes, bytes]: races with threads.

        A row's bytes lie beside each other, in whatever order.
        """
        width = self.granule
        first = places.min(axis=1) // width
        n = int(places[0].max()) // width - int(first[0]) + 1
        try:
            if isinstance(store, Space):
                self.shared_races.access(lanes, first, width, n, writes, site, self.shown_site)
                return
            if self.dependency is not None:
                self.dependency.check(self, store, lanes, first, width * n, width, writes)
            self._watch_global(store, lanes, slice(None), first, width, n, writes)
        except Fault as fault:
            self.complete(fault, store)
            raise

    def _watch_global(
        self, store: Block, sel: Sel, where: Any, cells: Array, width: int, n: int, writes: bool
    ) -> None:
        if not store.writable or (self.lanes.n_ctas == 1 and self.lanes.grid == (1, 1, 1)):
            return
        if not isinstance(store.shadow, GlobalRaces):
            store.shadow = GlobalRaces(*store.span, self.granule)
        store.shadow.access(self, sel, where, cells, width, n, writes)

    def complete(self, fault: Fault, store: Any) -> None:
        """Turn a byte place of the store into address, allocation and offset."""
        if fault.address is None or fault.allocation != "":
            return
        place = fault.address
        if isinstance(store, Space):
            fault.address, fault.allocation, fault.offset = store.shown(place)
        else:
            fault.address, fault.allocation, fault.offset = store.base + place, store.name, place

    def check_written(self, store: Any, sel: Sel, where: Any, cells: Array, width: int) -> None:
        """Fault when an atomic works on bytes that nobody wrote."""
        if not self.sanitise or store.all_valid:
            return
        bad = store.valid_view(width)[cells] != VALID[width]
        if bad.any():
            lane = self.lanes.index(sel)[where][bad]
            fault = Fault("uninitialised", "works on memory that nobody wrote", lane,
                          int(cells[int(np.argmax(bad))]) * width, "")
            self.complete(fault, store)
            raise fault

    def check_output(self, store: Any, sel: Sel, where: Any, cells: Array, n_bytes: int,
                     width: int) -> None:
        """Fault when a store leaves what the launch may write."""
        if self.outputs is not None and isinstance(store, Block):
            self.outputs.check(store, self.lanes.index(sel)[where], cells, n_bytes, width)

    def strong(
        self, sel: Sel, access: Any, address: Array, reads: bool, writes: bool, order: str
    ) -> None:
        """An ordered or atomic access: a flag that may carry knowledge between warps and CTAs."""
        if self.sanitise:
            # One place has one number, whether it is named by its space or generically.
            place = address | np.uint64(WINDOWS.get(access.space, 0))
            self.clocks.strong(sel, place, reads, writes, order)

    def predecessor_ended(self, sel: Sel) -> None:
        """griddepcontrol.wait: what the launch before wrote is there for these lanes."""
        if self.dependency is not None:
            self.dependency.wait(self, sel)

    def proxy_fence(self, sel: Sel) -> None:
        """Ordinary writes of these lanes are visible to asynchronous copies from here."""
        self.claims.fence(sel)
