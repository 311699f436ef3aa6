"""Owns what a launch may write and must write: byte ranges of allocations.

It must not know kernels. Everything outside the ranges is an input.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.memory import Block, Memory
from ptx.numerics import Array


@dataclass(frozen=True)
class Output:
    """A run of bytes that a launch may write; `whole` when it must write all of them."""

    address: int
    n_bytes: int
    whole: bool = True


class Outputs:
    """The outputs of one launch, sorted by allocation."""

    def __init__(self, memory: Memory, outputs: Sequence[Output]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._whole: list[tuple[Block, int, int]] = []
        self.blocks: list[Block] = []
        for output in outputs:
            if not output.n_bytes:
                continue
            block, offset = memory.range(output.address, output.n_bytes)
            if block.base not in self._ranges:
                self.blocks.append(block)
            runs = self._ranges.setdefault(block.base, [])
            runs.append((offset, offset + output.n_bytes))
            if output.whole:
                self._whole.append((block, offset, offset + output.n_bytes))
        for block in self.blocks:
            runs = self._ranges[block.base]
            block.open(min(start for start, _ in runs), max(end for _, end in runs))

    def check(self, block: Block, lanes: Array, cells: Array, n_bytes: int, width: int) -> None:
        """Fault for cells of a block outside its output ranges."""
        low, high = int(cells.min()) * width, int(cells.max()) * width + n_bytes
        runs = self._ranges.get(block.base, [])
        if any(start <= low and high <= end for start, end in runs):
            return
        first = cells * width
        inside = np.zeros(len(cells), bool)
        for start, end in runs:
            inside |= (first >= start) & (first + n_bytes <= end)
        if inside.all():
            return
        offset = int(first[int(np.argmin(inside))])
        raise Fault("const", "writes memory that the kernel may only read", lanes[~inside],
                    block.base + offset, block.name, offset)

    def check_written(self) -> None:
        """Fault for the first byte of a whole output that the launch did not write."""
        for block, start, end in self._whole:
            assert block.written is not None
            first = block.span[0]
            missing = np.flatnonzero(block.written[start - first : end - first] == 0)
            if len(missing):
                offset = start + int(missing[0])
                raise Fault(
                    "outputs", f"{len(missing)} of {end - start} bytes of an output were never "
                    "written", None, block.base + offset, block.name, offset,
                )
