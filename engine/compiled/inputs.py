"""Owns what a pass brings to the device: ids, positions, cells and slots, in one upload.

All of it lies in one i32 buffer, so that a captured graph finds it at fixed places and a step costs
one copy. Tables of pages are apart: they change once in PAGE_TOKENS tokens. It must not know steps.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.chunk import Chunk
from engine.errors import RuntimeFailure
from engine.kv_cache import PAGE_TOKENS
from ptx.device import Device

# Of each input, whether it has a cell for each row of a pass, for each sequence, or one more.
ROW, SEQUENCE, BORDER = "row", "sequence", "border"
INPUTS = {
    "ids": ROW, "positions": ROW, "slots": ROW, "seq_of_token": ROW,
    "first": SEQUENCE, "state_in": SEQUENCE, "state_out": SEQUENCE, "starts": BORDER,
}


class Inputs:
    """Device buffers for passes of up to `n_rows` rows of `n_sequences` sequences, whose tables
    have up to `n_pages` pages each."""

    def __init__(self, device: Device, n_rows: int, n_sequences: int, n_pages: int) -> None:
        """Allocate them; content unspecified."""
        self._device = device
        self._room = {ROW: n_rows, SEQUENCE: n_sequences, BORDER: n_sequences + 1}
        total = sum(self._room[kind] for kind in INPUTS.values())
        self._all = device.allocate((total,), "i32", "inputs of a pass")
        self._host = np.zeros(total, np.int32)
        self._at: dict[str, int] = {}
        at = 0
        for name, kind in INPUTS.items():
            self._at[name] = at
            at += self._room[kind]
        self._pages = device.allocate((n_sequences, n_pages), "i32", "page tables")
        self._tables = np.full((n_sequences, n_pages), -1, np.int32)
        self._rows = device.allocate((n_rows,), "i32", "rows that want logits")

    def bring(self, chunk: Chunk) -> None:
        """Upload a chunk's numbers; RuntimeFailure for more sequences than there is room for."""
        n_sequences = len(chunk.state_in)
        if n_sequences > self._room[SEQUENCE]:
            raise RuntimeFailure(
                f"pass: {n_sequences} sequences, at most {self._room[SEQUENCE]} in one"
            )
        present = chunk.owner[chunk.starts[:-1]]
        values: dict[str, npt.NDArray[np.int32]] = {
            "ids": chunk.ids, "positions": chunk.positions, "slots": chunk.slots,
            "seq_of_token": np.repeat(
                np.arange(n_sequences, dtype=np.int32), np.diff(chunk.starts)
            ),
            "first": chunk.positions[chunk.starts[:-1]], "state_in": chunk.state_in,
            "state_out": chunk.state_out, "starts": chunk.starts,
        }
        for name, cells in values.items():
            self._host[self._at[name] : self._at[name] + len(cells)] = cells
        self._device.upload(self._all, self._host)
        for row, owner in enumerate(present):
            self._bring_table(row, chunk.tables[int(owner)][::PAGE_TOKENS] // PAGE_TOKENS)

    def bring_rows(self, rows: Any) -> Any:
        """The buffer with these row numbers."""
        view = self._rows[: len(rows)]
        self._device.upload(view, np.asarray(rows, np.int32))
        return view

    def named(self, n_rows: int, n_sequences: int) -> dict[str, Any]:
        """Views for a pass of so many rows and sequences, as steps name them."""
        counts = {ROW: n_rows, SEQUENCE: n_sequences, BORDER: n_sequences + 1}
        found = {
            name: self._all[self._at[name] : self._at[name] + counts[kind]]
            for name, kind in INPUTS.items()
        }
        return {**found, "pages": self._pages[:n_sequences]}

    def _bring_table(self, row: int, pages: Any) -> None:
        """Upload a sequence's table where it is not on the device already."""
        held = self._tables[row]
        if not np.array_equal(held[: len(pages)], pages):
            held[: len(pages)] = pages
            self._device.upload(self._pages[row], held)
