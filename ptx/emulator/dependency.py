"""Owns what a grid may not touch yet because it began before the grids ahead of it have ended.

It must not know devices or batches. Contract: the PTX ISA's griddepcontrol and the driver's
programmatic launches. `griddepcontrol.wait` of any thread means that the launch just before has
ended, and nothing more: when that one never waited, those before it may still run.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.lanes import Sel
from ptx.emulator.memory import Block
from ptx.numerics import Array

# The event of the clocks that says that the predecessor has ended.
ENDED = 0
# Launches that may still run, for a caller whose kernels never wait: older ones are forgotten.
MAX_WRITERS = 32


class Writer(NamedTuple):
    """A launch and what it wrote: by the base of an allocation, the first byte and marks from it.
    """

    name: str
    wrote: Mapping[int, tuple[int, Array]]


class Dependency:
    """The launches that may still run when a launch begins: `writers`, the one just before first.
    """

    def __init__(self, writers: tuple[Writer, ...]) -> None:
        self._writers = writers
        self.waited = False

    def wait(self, state: Any, sel: Sel) -> None:
        """These lanes' warps have waited for the predecessor's end."""
        self.waited = True
        state.clocks.happened(sel, ENDED, 1)

    def check(
        self, state: Any, store: Block, lanes: Array, cells: Array, n_bytes: int, width: int,
        writes: bool,
    ) -> None:
        """Fault for lanes whose `n_bytes` from cells of `width` bytes may still be written."""
        for number, writer in enumerate(self._writers):
            if store.base not in writer.wrote:
                continue
            first, marks = writer.wrote[store.base]
            places = (cells * width)[:, None] - first + np.arange(n_bytes)
            inside = (places >= 0) & (places < len(marks))
            bad = (inside & (marks[np.where(inside, places, 0)] != 0)).any(axis=1)
            if number == 0 and bad.any():
                bad &= ~state.clocks.has_seen(lanes, ENDED, 1)
            if bad.any():
                place = int(cells[int(np.argmax(bad))]) * width
                raise self._fault(number, writes, lanes[bad], place)

    def still_running(self, ended: Writer) -> tuple[Writer, ...]:
        """Launches that may still run when the one after this launch, `ended`, begins."""
        rest = self._writers[1:] if self.waited else self._writers
        return (ended, *rest)[:MAX_WRITERS]

    def _fault(self, number: int, writes: bool, lanes: Array, place: int) -> Fault:
        name, verb = self._writers[number].name, "writes" if writes else "reads"
        why = "before griddepcontrol.wait"
        if number:
            why = f"which may still run: {self._writers[number - 1].name} did not wait for it"
        return Fault("dependency", f"{verb} what {name} wrote, {why}", lanes, place, "")
