"""Owns registers: bits by lane, which lanes hold nothing or something unwritten, typed access.

It must not know opcodes. A register is read through the instruction's type, as PTX does. Taint 1
is a value copied from memory that nobody wrote, 2 is a register that nobody wrote.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES, Type
from ptx.emulator.lanes import Lanes, Sel
from ptx.numerics import Array

Get = Callable[[Sel], Array]
Put = Callable[[Sel, Array], None]
FROM_MEMORY, NEVER_WRITTEN = 1, 2


class Reg:
    """One declared register over all lanes of a batch."""

    __slots__ = ("bits", "name", "origin", "taint", "type", "watch")

    def __init__(self, name: str, type_: Type, n_lanes: int) -> None:
        self.name, self.type = name, type_
        shape: tuple[int, ...] = (n_lanes, 2) if type_.n_bits == 128 else (n_lanes,)
        self.bits = np.zeros(shape, _storage(type_))
        self.taint: Array | None = None
        self.origin = ""
        # Hears of every access of lanes; set before readers and writers are made.
        self.watch: Callable[[Sel], None] | None = None

    def view(self, type_: Type) -> Array:
        """The register read as a type of its width, or the low part read as a narrower one."""
        if type_.kind == "pred" or type_.n_bits == 128:
            return self.bits
        n_parts = self.type.n_bits // type_.n_bits
        parts = self.bits.view(type_.dtype)
        if type_.n_packed == 2:
            return parts.reshape(len(self.bits), 2 * n_parts)[:, :2]
        return parts[::n_parts]

    def blame(self, sel: Sel, limit: int, lanes: Lanes) -> None:
        """Raise when a selected lane's taint is above `limit`."""
        assert self.taint is not None
        bad = self.taint[sel] > limit
        if not bad.any():
            return
        where = lanes.index(sel)[bad]
        if self.taint[where[0]] == NEVER_WRITTEN:
            text = f"register {self.name} was never written"
        else:
            text = f"register {self.name} holds memory that nobody wrote ({self.origin})"
        raise Fault("uninitialised", text, where)

    def mark(self, sel: Sel, taint: Array, origin: str) -> None:
        """Set the taint of selected lanes; no lane tainted at all costs nothing later."""
        if self.taint is None:
            if not taint.any():
                return
            self.taint = np.zeros(len(self.bits), np.uint8)
        self.taint[sel] = taint
        if origin:
            self.origin = origin
        self.tidy()

    def clear(self, sel: Sel) -> None:
        """Selected lanes hold a defined value now."""
        assert self.taint is not None
        self.taint[sel] = 0
        self.tidy()

    def tidy(self) -> None:
        """Forget a taint array without taint."""
        if self.taint is not None and not self.taint.any():
            self.taint = None


def _storage(type_: Type) -> np.dtype:
    if type_.kind == "pred":
        return np.dtype(np.bool_)
    if type_.n_bits == 128:
        return np.dtype(np.uint64)
    return np.dtype(f"uint{type_.n_bits}")


class RegisterFile:
    """All registers of a kernel for one batch."""

    def __init__(self, declared: dict[str, str], lanes: Lanes) -> None:
        self.lanes = lanes
        self.regs = {
            name: Reg(name, TYPES[type_name], lanes.n_lanes)
            for name, type_name in declared.items()
        }

    def reset(self, maybe_unwritten: set[str]) -> None:
        """Forget all values; only registers that may be read too early are watched."""
        for name, reg in self.regs.items():
            reg.taint = None
            if name in maybe_unwritten:
                reg.taint = np.full(self.lanes.n_lanes, NEVER_WRITTEN, np.uint8)

    def reader(self, name: str, type_: Type, copies: bool = False) -> Get:
        """A function from a selection to values; `copies` lets unwritten memory pass."""
        reg, lanes = self.regs[name], self.lanes
        view, limit = reg.view(type_), int(copies)

        def get(sel: Sel) -> Array:
            if reg.taint is not None:
                reg.blame(sel, limit, lanes)
            values: Array = view[sel]
            return values

        return get if reg.watch is None else _heard(reg.watch, get)

    def writer(self, name: str, type_: Type) -> Put:
        """A function that stores values of the register's own width."""
        reg = self.regs[name]
        view = reg.view(type_)

        def put(sel: Sel, values: Array) -> None:
            view[sel] = values
            if reg.taint is not None:
                reg.clear(sel)

        watch = reg.watch
        if watch is None:
            return put

        def watched(sel: Sel, values: Array) -> None:
            watch(sel)
            put(sel, values)

        return watched


def _heard(watch: Callable[[Sel], None], get: Get) -> Get:
    def watched(sel: Sel) -> Array:
        watch(sel)
        return get(sel)

    return watched
