"""Owns the state spaces of a batch: shared, local, parameters; where generic addresses lead.

It must not know instructions. Shared memory is one array of all CTAs of the batch, local memory one
of all lanes; variables lie apart, so that a small overrun hits a gap.
"""

from bisect import bisect_right

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Lanes, Sel
from ptx.emulator.memory import CELL
from ptx.emulator.syntax import Variable
from ptx.numerics import Array

# Generic address = window + address in the space. Null lies in no window.
WINDOWS = {
    "global": 0, "const": 0, "shared": 0x1_0000_0000_0000, "local": 0x2_0000_0000_0000,
    "param": 0x3_0000_0000_0000,
}
WINDOW_BYTES = 1 << 40
FIRST_OFFSET, VARIABLE_GAP = 1024, 64


class Space:
    """One windowed space: `owner` maps a lane to its copy, copies are `stride` bytes apart."""

    def __init__(
        self, name: str, variables: list[Variable], dynamic_bytes: int, lanes: Lanes, owner: Array,
        n_owners: int,
    ) -> None:
        self.name, self.lanes = name, lanes
        self.offsets: dict[str, int] = {}
        self.names: list[str] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.n_static = 0
        at = FIRST_OFFSET
        # The dynamic block comes last and may serve several names.
        for variable in sorted(variables, key=lambda v: v.dynamic):
            n_bytes = dynamic_bytes if variable.dynamic else variable.n_bytes
            align = max(variable.align, CELL, 1024 if variable.dynamic else 1)
            at = -(-at // align) * align
            self.offsets[variable.name] = at
            if variable.dynamic and self.names and self.starts[-1] == at:
                continue
            self.names.append(variable.name)
            self.starts.append(at)
            self.ends.append(at + n_bytes)
            if not variable.dynamic:
                self.n_static += n_bytes
                at += n_bytes + VARIABLE_GAP
        self.all_valid = False
        self.stride = -(-(self.ends[-1] if self.ends else 0) // 128) * 128
        self.base = owner.astype(np.int64) * self.stride
        n_all = n_owners * self.stride
        self.data = np.zeros(n_all, np.uint8)
        self.valid = np.zeros(n_all, np.uint8)
        self._views = {
            width: (self.data.view(f"uint{8 * width}"), self.valid.view(f"uint{8 * width}"))
            for width in (1, 2, 4, 8)
        }

    def reset(self) -> None:
        """Nobody wrote anything; old values would look plausible, so they become a NaN pattern."""
        self.data.fill(0xFF)
        self.valid.fill(0)
        self.all_valid = False

    def mark_written(self, width: int, cells: Array) -> None:
        """No launch has shared or local memory as an output."""

    def view(self, width: int) -> Array:
        """All bytes as cells of `width` bytes."""
        return self._views[width][0]

    def valid_view(self, width: int) -> Array:
        """The written-marks as cells of `width` bytes."""
        return self._views[width][1]

    def places(self, sel: Sel, address: Array, width: int) -> Array:
        """Byte places in `data` of an access of `width` bytes; Fault outside one variable."""
        if not len(address):
            return address.astype(np.int64)
        # The window's upper bits may be there or not: addresses of 32 bits never have them.
        offset = (address & np.uint64(WINDOW_BYTES - 1)).astype(np.int64)
        low, high = int(offset.min()), int(offset.max())
        at = bisect_right(self.starts, low) - 1
        if at < 0 or high + width > self.ends[at]:
            self._check_each(sel, offset, width)
        placed: Array = offset + self.base[sel]
        return placed

    def _check_each(self, sel: Sel, offset: Array, width: int) -> None:
        starts = np.array([*self.starts, 1 << 62])
        ends = np.array([*self.ends, 0])
        at = np.searchsorted(starts, offset, side="right") - 1
        bad = (at < 0) | (offset + width > ends[at])
        if not bad.any():
            return
        first = int(np.argmax(bad))
        name, inside = None, None
        near = max(int(at[first]), 0)
        if self.names:
            name, inside = self.names[near], int(offset[first]) - self.starts[near]
        raise Fault(
            "bounds", f"{width} bytes of {self.name} memory are not inside one variable",
            self.lanes.index(sel)[bad], int(offset[first]), name, inside,
        )

    def shown(self, place: int) -> tuple[int, str | None, int | None]:
        """Address, variable and offset of a byte place."""
        offset = place % self.stride if self.stride else 0
        at = bisect_right(self.starts, offset) - 1
        if at < 0:
            return offset, None, None
        return offset, self.names[at], offset - self.starts[at]


class Params:
    """The parameter space: the same bytes for all lanes."""

    def __init__(self) -> None:
        self.data = np.zeros(CELL, np.uint8)
        self.n_bytes = 0

    def fill(self, raw: bytes) -> None:
        """Set the bytes of a launch."""
        self.n_bytes = len(raw)
        padded = raw + bytes(-len(raw) % CELL + CELL)
        self.data = np.frombuffer(padded, np.uint8)


def in_window(address: Array, space: str) -> Array:
    """Which generic addresses lie in a space's window."""
    top = address & ~np.uint64(WINDOW_BYTES - 1)
    if space in ("global", "const"):
        others = [np.uint64(w) for w in WINDOWS.values() if w]
        result: Array = ~np.isin(top, others)
        return result
    inside: Array = top == np.uint64(WINDOWS[space])
    return inside
