"""Owns one memory access of many lanes: place, alignment, written-marks, who else touched it.

It must not know instruction syntax. Every load and store of the families goes through `Access`,
and so every rule of the sanitiser about memory is applied in this file.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Sel
from ptx.emulator.memory import VALID, Block, Memory
from ptx.emulator.spaces import WINDOW_BYTES, WINDOWS, Space
from ptx.numerics import Array

# One part of an access: where in the lanes' array, the store, and cell indices in it.
Part = tuple[slice | Array, Any, Array]
ALL = slice(None)


class Access:
    """Loads and stores cells of `width` bytes, `n` beside each other, in a state space."""

    def __init__(self, state: Any, space: str, width: int, n: int, strong: bool = False) -> None:
        self.state, self.space, self.width, self.n = state, space, width, n
        self.total = width * n
        self.strong = strong
        self._steps = np.arange(n)
        self._shift = width.bit_length() - 1

    def load(self, sel: Sel, address: Array) -> tuple[Array, Array | None]:
        """Raw cells [lanes, n], and which lanes hold bytes that nobody wrote (None: all did)."""
        self.aligned(sel, address)
        out: Array | None = None
        fresh: Array | None = None
        for where, store, cells in self._parts(sel, address):
            index = cells[:, None] + self._steps if self.n > 1 else cells
            part = store.view(self.width)[index]
            bad = None
            if not store.all_valid:
                marks = store.valid_view(self.width)[index] != VALID[self.width]
                if marks.any():
                    bad = marks.any(axis=1) if self.n > 1 else marks
            self.state.watch(store, sel, where, cells, self.width, self.n, False, self.strong)
            if where is ALL:
                out, fresh = part, bad
                continue
            if out is None:
                shape = (len(address), self.n) if self.n > 1 else (len(address),)
                out = np.zeros(shape, part.dtype)
                fresh = np.zeros(len(address), bool)
            out[where] = part
            if bad is not None and fresh is not None:
                fresh[where] = bad
        assert out is not None
        if not self.state.sanitise:
            fresh = None
        return out, fresh

    def store(self, sel: Sel, address: Array, values: Array, fresh: Array | None = None) -> None:
        """Write raw cells [lanes, n]; lanes in `fresh` copy something that nobody wrote."""
        self.aligned(sel, address)
        for where, store, cells in self._parts(sel, address):
            self.check_writable(store, sel, where, cells)
            self.state.watch(store, sel, where, cells, self.width, self.n, True, self.strong)
            index = cells[:, None] + self._steps if self.n > 1 else cells
            store.view(self.width)[index] = values[where]
            if fresh is not None and fresh[where].any():
                marks = np.where(fresh[where], VALID[self.width].dtype.type(0), VALID[self.width])
                store.valid_view(self.width)[index] = marks[:, None] if self.n > 1 else marks
                store.all_valid = False
            elif not store.all_valid:
                store.valid_view(self.width)[index] = VALID[self.width]
            store.mark_written(self.width, index)

    def cells(self, sel: Sel, address: Array) -> Iterator[Part]:
        """Checked parts of an access, for families that combine reading and writing."""
        self.aligned(sel, address)
        return self._parts(sel, address)

    def narrow_cells(self, sel: Array, address: Array, n_bytes: Array) -> Iterator[Part]:
        """Byte places of reads of `n_bytes` of the access's bytes, aligned to all of them."""
        self.aligned(sel, address)
        for count in np.unique(n_bytes):
            chosen = np.flatnonzero(n_bytes == count)
            part = Access(self.state, self.space, 1, int(count))
            for where, store, cells in part._parts(sel[chosen], address[chosen]):
                yield chosen[where], store, cells

    def check_writable(self, store: Any, sel: Sel, where: Any, cells: Array) -> None:
        """Fault when the kernel may not write there."""
        if isinstance(store, Block):
            self.state.check_output(store, sel, where, cells, self.total, self.width)

    def aligned(self, sel: Sel, address: Array) -> None:
        """Fault for addresses that are no multiple of the access's bytes."""
        if self.total > 1 and int(np.bitwise_or.reduce(address, initial=0)) & (self.total - 1):
            bad = (address & np.uint64(self.total - 1)) != 0
            first = int(address[int(np.argmax(bad))])
            name, offset = self.state.name_of(first, self.space)
            raise Fault("alignment", f"needs a multiple of {self.total}",
                        self.state.lanes.index(sel)[bad], first, name, offset)

    def _parts(self, sel: Sel, address: Array) -> Iterator[Part]:
        if self.space in ("shared", "local"):
            yield self._windowed(self.state.space(self.space), sel, ALL, address)
            return
        if self.space == "generic":
            yield from self._generic(sel, address)
            return
        yield from self._global(sel, ALL, address)

    def _windowed(self, space: Space, sel: Sel, where: Any, address: Array) -> Part:
        lanes = sel if where is ALL else self.state.lanes.index(sel)[where]
        return where, space, space.places(lanes, address, self.total) >> self._shift

    def _generic(self, sel: Sel, address: Array) -> Iterator[Part]:
        top = address & ~np.uint64(WINDOW_BYTES - 1)
        rest = np.ones(len(address), bool)
        for name in ("shared", "local"):
            inside = top == np.uint64(WINDOWS[name])
            if inside.any():
                where = ALL if inside.all() else np.flatnonzero(inside)
                yield self._windowed(self.state.space(name), sel, where, address[where])
                rest &= ~inside
        if rest.any():
            where = ALL if rest.all() else np.flatnonzero(rest)
            yield from self._global(sel, where, address[where])

    def _global(self, sel: Sel, where: Any, address: Array) -> Iterator[Part]:
        if not len(address):
            return
        low, high = int(address.min()), int(address.max())
        memory: Memory = self.state.memory
        block = memory.at(low)
        if block is not None and high + self.total <= block.end:
            yield where, block, (address - np.uint64(block.base)).astype(np.int64) >> self._shift
            return
        lanes = self.state.lanes.index(sel)[where]
        numbers = np.arange(self.state.lanes.n_lanes)[: len(address)]
        numbers = numbers if where is ALL else where
        yield from self._several(memory, lanes, numbers, address)

    def _several(
        self, memory: Memory, lanes: Array, numbers: Array, address: Array
    ) -> Iterator[Part]:
        """Accesses that touch more than one allocation, or none."""
        blocks = memory.blocks()
        starts = np.array([*(block.base for block in blocks), 2**63], np.uint64)
        at = np.searchsorted(starts, address, side="right") - 1
        ends = np.array([*(block.end for block in blocks), 0], np.uint64)
        bad = (at < 0) | (address + np.uint64(self.total) > ends[at])
        if bad.any():
            first = int(address[int(np.argmax(bad))])
            near = memory.nearest(first)
            name, offset = near if near else (None, None)
            raise Fault("bounds", f"{self.total} bytes are not inside one allocation",
                        lanes[bad], first, name, offset)
        for number in np.unique(at):
            chosen, block = at == number, blocks[number]
            offset64 = (address[chosen] - np.uint64(block.base)).astype(np.int64)
            yield numbers[chosen], block, offset64 >> self._shift
