"""Owns KV pages of bf16 on a device: reading, writing and copying cells of them.

A page is [G, PAGE_TOKENS, E] for K and for V of a layer; cell c is row c % PAGE_TOKENS of page
c // PAGE_TOKENS. It must not know sequences.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.artifacts.bf16 import round_to_bf16, widen_bf16
from engine.kv_cache import PAGE_TOKENS
from engine.records import KvShape
from ptx.device import Device

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
BYTES_OF_CELL = 2


class Pages:
    """The pages of all layers, by layer and which: 0 for K, 1 for V."""

    def __init__(self, device: Device, kv: KvShape, n_pages: int) -> None:
        """Allocate them; content unspecified."""
        shape = (n_pages, kv.n_heads, PAGE_TOKENS, kv.d_head)
        self._device = device
        self._kv = kv
        self.buffers = {
            layer: tuple(
                device.allocate(shape, "bf16", f"{which}_pages.{layer}") for which in "kv"
            )
            for layer in kv.layers
        }

    def named(self) -> dict[str, Any]:
        """The buffers as steps name them."""
        return {
            f"{which}_pages.{layer}": buffer
            for layer, pair in self.buffers.items()
            for which, buffer in zip("kv", pair, strict=True)
        }

    def copy(self, source: int, target: int) -> None:
        """Copy one page of every layer."""
        for pair in self.buffers.values():
            for pages in pair:
                self._device.copy(pages[source], pages[target])

    def read(self, layer: int, which: int, cells: I32) -> F32:
        """Rows of cells: float32 [len(cells), G, E]."""
        pages = self.buffers[layer][which]
        found = [np.zeros((0, self._kv.n_heads, self._kv.d_head), np.uint16)]
        for first, last, begin, end in _spans(cells):
            held = self._device.download(pages[first : last + 1])
            by_cell = held.transpose(0, 2, 1, 3).reshape(-1, *found[0].shape[1:])
            found.append(by_cell[begin:end])
        return widen_bf16(np.concatenate(found))

    def write(self, layer: int, which: int, cells: I32, rows: F32) -> None:
        """Store float32 [len(cells), G, E] as bf16; the other cells of their pages stay."""
        pages, done = self.buffers[layer][which], 0
        for first, last, begin, end in _spans(cells):
            run = pages[first : last + 1]
            held = self._device.download(run)
            page, row = np.divmod(np.arange(begin, end), PAGE_TOKENS)
            held[page, :, row] = round_to_bf16(rows[done : done + end - begin])
            self._device.upload(run, held)
            done += end - begin


def _spans(cells: Sequence[int] | I32) -> Iterator[tuple[int, int, int, int]]:
    """Runs of cells that follow each other: first and last page, and the cells from begin to end
    counted from the first page's."""
    array = np.asarray(cells)
    if not len(array):
        return
    for part in np.split(array, np.flatnonzero(np.diff(array) != 1) + 1):
        first, last = int(part[0]) // PAGE_TOKENS, int(part[-1]) // PAGE_TOKENS
        begin = int(part[0]) - first * PAGE_TOKENS
        yield first, last, begin, begin + len(part)
