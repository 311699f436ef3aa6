"""Owns device memory: allocations with gaps between them, and which bytes somebody wrote.

It must not know kernels. Addresses are 64-bit numbers of an invented space: nothing is adjacent, a
freed range is never given out again, and null is far from everything.
"""

from bisect import bisect_right
from typing import Any

import numpy as np

from ptx.emulator.errors import Fault
from ptx.numerics import Array

FIRST_ADDRESS = 0x7000_0000_0000
ALIGNMENT, GAP = 512, 512
# Views of every width need whole 16-byte cells at the end of a block.
CELL = 16
VALID: dict[int, Any] = {1: np.uint8(1), 2: np.uint16(0x0101), 4: np.uint32(0x01010101),
         8: np.uint64(0x0101010101010101)}


class Block:
    """One allocation: its bytes, and a byte of 1 beside each byte that was written."""

    def __init__(self, name: str, base: int, n_bytes: int) -> None:
        self.name, self.base, self.n_bytes = name, base, n_bytes
        self.end = base + n_bytes
        self.data = np.zeros(-(-max(n_bytes, 1) // CELL) * CELL, np.uint8)
        self.valid = np.zeros(len(self.data), np.uint8)
        self.all_valid = False
        self.writable = True  # False while a launch has it as an input
        # While a launch runs: the bytes that are its outputs, those it wrote, who touched them.
        self.span = 0, len(self.data)
        self.written: Array | None = None
        self.shadow: object = None
        self._views = {
            width: (self.data.view(f"uint{8 * width}"), self.valid.view(f"uint{8 * width}"))
            for width in (1, 2, 4, 8)
        }

    def view(self, width: int) -> Array:
        """The bytes as cells of `width` bytes."""
        return self._views[width][0]

    def valid_view(self, width: int) -> Array:
        """The written-marks as cells of `width` bytes."""
        return self._views[width][1]

    def open(self, first: int, end: int) -> None:
        """A launch has the bytes from `first` to `end` as outputs."""
        self.span = first // CELL * CELL, -(-end // CELL) * CELL
        self.written = np.zeros(self.span[1] - self.span[0], np.uint8)

    def mark_written(self, width: int, cells: Array) -> None:
        """Note cells of `width` bytes that a launch wrote; they lie in its outputs."""
        if self.written is not None:
            self.written.view(f"uint{8 * width}")[cells - self.span[0] // width] = VALID[width]

    def close(self) -> None:
        """The launch is over. A block that is known to be written is cheaper to read."""
        if self.span[1] - self.span[0] >= self.n_bytes and not self.all_valid:
            self.all_valid = bool(self.valid[: self.n_bytes].all())
        self.written, self.shadow, self.span = None, None, (0, len(self.data))


class Memory:
    """All allocations of a device."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._blocks: list[Block] = []
        self._next = FIRST_ADDRESS
        self.n_bytes = 0

    def allocate(self, n_bytes: int, name: str) -> int:
        """Address of a fresh block, a multiple of 512; nobody wrote its bytes."""
        block = Block(name, self._next, n_bytes)
        self._next += -(-(n_bytes + GAP) // ALIGNMENT) * ALIGNMENT + GAP
        self._bases.append(block.base)
        self._blocks.append(block)
        self.n_bytes += n_bytes
        return block.base

    def free(self, address: int) -> None:
        """Forget a block; its addresses stay unused."""
        at = bisect_right(self._bases, address) - 1
        if at >= 0 and self._bases[at] == address:
            self.n_bytes -= self._blocks[at].n_bytes
            del self._bases[at], self._blocks[at]

    def at(self, address: int) -> Block | None:
        """The live block that holds an address, or None."""
        at = bisect_right(self._bases, address) - 1
        if at >= 0 and address < self._blocks[at].end:
            return self._blocks[at]
        return None

    def nearest(self, address: int) -> tuple[str, int] | None:
        """Name and offset of the block that an address belongs to or just misses."""
        at = bisect_right(self._bases, address) - 1
        if at >= 0 and address < self._blocks[at].end + GAP:
            return self._blocks[at].name, address - self._blocks[at].base
        if at + 1 < len(self._blocks) and self._bases[at + 1] - address <= GAP:
            return self._blocks[at + 1].name, address - self._bases[at + 1]
        return None

    def blocks(self) -> list[Block]:
        """All live blocks in address order."""
        return list(self._blocks)

    def range(self, address: int, n_bytes: int) -> tuple[Block, int]:
        """Block and offset of a run of bytes; Fault when it is not inside one block."""
        block = self.at(address)
        if block is None or address + n_bytes > block.end:
            near = self.nearest(address)
            raise Fault(
                "bounds", f"{n_bytes} bytes are not inside one allocation", None, address,
                near[0] if near else None, near[1] if near else None,
            )
        return block, address - block.base

    def write(self, address: int, cells: Array) -> None:
        """Copy an array's bytes in; they count as written."""
        block, offset = self.range(address, cells.nbytes)
        block.data[offset : offset + cells.nbytes] = cells.reshape(-1).view(np.uint8)
        block.valid[offset : offset + cells.nbytes] = 1
        block.all_valid |= cells.nbytes == block.n_bytes

    def read(self, address: int, cells: Array) -> None:
        """Copy bytes out into an array, written or not."""
        block, offset = self.range(address, cells.nbytes)
        cells.reshape(-1).view(np.uint8)[:] = block.data[offset : offset + cells.nbytes]

    def move(self, source: int, target: int, n_bytes: int) -> None:
        """Copy bytes and their written-marks."""
        a, start = self.range(source, n_bytes)
        b, to = self.range(target, n_bytes)
        b.data[to : to + n_bytes] = a.data[start : start + n_bytes].copy()
        b.valid[to : to + n_bytes] = a.valid[start : start + n_bytes].copy()
        b.all_valid &= bool(b.valid[to : to + n_bytes].all())
