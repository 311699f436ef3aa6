"""Owns which registers belong to asynchronous products, and which were touched since a fence.

It must not know instruction syntax, nor when products end. From its issue until somebody has waited
for it, the registers of a wgmma are nobody else's, not even to read. What other instructions touch
belongs to them until wgmma.fence. Contract: the PTX ISA's wgmma.mma_async and wgmma.fence. Only
registers that some wgmma of the kernel names are watched.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Sel
from ptx.emulator.registers import RegisterFile
from ptx.emulator.syntax import Kernel, Register, Vector
from ptx.numerics import Array

FREE = 0
# Shapes of accumulators are numbered from 1; A has none.
NO_SHAPE = 0


def names_of(kernel: Kernel) -> list[str]:
    """The registers that a kernel's products hold: vectors of D, and of A."""
    found: dict[str, None] = {}
    for source in kernel.code:
        if source.opcode == "wgmma":
            for operand in source.operands:
                for item in operand.items if isinstance(operand, Vector) else ():
                    if isinstance(item, Register):
                        found[item.name] = None
    return list(found)


class Held:
    """Marks of each watched register and lane: [registers, lanes]."""

    def __init__(
        self, kernel: Kernel, registers: RegisterFile, shown_holder: Callable[[int], str],
        sanitise: bool,
    ) -> None:
        self.lanes, self._shown, self._sanitise = registers.lanes, shown_holder, sanitise
        names = names_of(kernel)
        self.row_of = {name: row for row, name in enumerate(names)}
        self._names = names
        shape = (len(names), self.lanes.n_lanes)
        # The last product that holds it, the shape that it has as an accumulator since a fence.
        self.holder = np.zeros(shape, np.int32)
        self.shape = np.zeros(shape, np.int16)
        self.touched = np.ones(shape, bool)
        self._shapes: dict[str, int] = {}
        if sanitise:
            for row, name in enumerate(names):
                registers.regs[name].watch = self._watcher(row)

    def reset(self) -> None:
        """Nobody holds anything, and there was no fence."""
        self.holder.fill(FREE)
        self.shape.fill(NO_SHAPE)
        self.touched.fill(True)

    def number_of(self, shape: str) -> int:
        """The number of a shape of accumulators."""
        return self._shapes.setdefault(shape, len(self._shapes) + 1)

    def _watcher(self, row: int) -> Callable[[Sel], None]:
        holder, touched = self.holder[row], self.touched[row]

        def access(sel: Sel) -> None:
            if holder[sel].any():
                self._blame(row, sel, holder[sel] != FREE)
            touched[sel] = True

        return access

    def _blame(self, row: int, sel: Sel, bad: Array) -> None:
        lanes = self.lanes.index(sel)[bad]
        other = self._shown(int(self.holder[row, lanes[0]]))
        raise Fault("async", f"register {self._names[row]} belongs to {other} until a "
                    "wgmma.wait_group covers it", lanes)

    def fence(self, sel: Sel) -> None:
        """What these lanes did with registers comes before what products do."""
        self.touched[:, sel] = False
        # Products that run on go on being in order with those of their own shape alone.
        shape = self.shape[:, sel]
        self.shape[:, sel] = np.where(self.holder[:, sel] == FREE, NO_SHAPE, shape)

    def hold(self, lanes: Array, rows: Array, number: int, shape: str) -> None:
        """Product `number` takes accumulators of a shape, or with "" registers of A.

        `rows` are theirs in `row_of`. Fault when it may not yet.
        """
        wanted = self.number_of(shape) if shape else NO_SHAPE
        cells = np.ix_(rows, lanes)
        if self._sanitise:
            self._may_hold(rows, lanes, cells, wanted)
        self.holder[cells] = number
        self.shape[cells] = wanted

    def _may_hold(
        self, rows: Array, lanes: Array, cells: tuple[Array, ...], wanted: int
    ) -> None:
        before, held = self.shape[cells], self.holder[cells] != FREE
        taken = held & (before != wanted)
        if taken.any():
            row = int(np.argmax(taken.any(axis=1)))
            self._blame(int(rows[row]), lanes, taken[row])
        # Touched by something else, or last an accumulator of another shape.
        bad = self.touched[cells] | ((before != wanted) & (before != NO_SHAPE))
        if bad.any():
            row = int(np.argmax(bad.any(axis=1)))
            raise Fault("async", f"needs a wgmma.fence after what touched register "
                        f"{self._names[rows[row]]}, or at the start", lanes[bad[row]])

    def release(self, lanes: Array, rows: Array, number: int) -> None:
        """Somebody has waited for product `number`."""
        cells = np.ix_(rows, lanes)
        holder = self.holder[cells]
        self.holder[cells] = np.where(holder == number, FREE, holder)
