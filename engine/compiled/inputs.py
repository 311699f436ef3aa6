"""Owns what a pass brings to the device: ids, positions, cells and slots, in one upload.

All of it lies in one i32 buffer, so that a captured graph finds it at fixed places and a step costs
one copy. Tables of pages are apart: they change once in PAGE_TOKENS tokens. It must not know steps.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.chunk import Chunk
from engine.compiled.staging import Staging
from engine.errors import RuntimeFailure
from engine.kv_cache import PAGE_TOKENS
from ptx.device import Device

# Of each input, whether it has a cell for each row of a pass, for each sequence, or one more.
ROW, SEQUENCE, BORDER = "row", "sequence", "border"
INPUTS = {
    "ids": ROW, "positions": ROW, "slots": ROW, "seq_of_token": ROW, "rows": ROW,
    "first": SEQUENCE, "state_in": SEQUENCE, "state_out": SEQUENCE, "starts": BORDER,
}


class Inputs:
    """Device buffers for passes of up to `n_rows` rows of `n_sequences` sequences, whose tables
    have up to `n_pages` pages each."""

    def __init__(
        self, device: Device, staging: Staging, n_rows: int, n_sequences: int, n_pages: int
    ) -> None:
        """Allocate them; content unspecified."""
        self._staging = staging
        self._room = {ROW: n_rows, SEQUENCE: n_sequences, BORDER: n_sequences + 1}
        total = sum(self._room[kind] for kind in INPUTS.values())
        self._all = device.allocate((total,), "i32", "inputs of a pass")
        self._host = staging.array((total,), "i32", "inputs of a pass")
        self._at: dict[str, int] = {}
        at = 0
        for name, kind in INPUTS.items():
            self._at[name] = at
            at += self._room[kind]
        self._pages = device.allocate((n_sequences, n_pages), "i32", "page tables")
        self._tables = staging.array((n_sequences, n_pages), "i32", "page tables")
        self._tables[...] = -1
        # Whose table lies in a row: tables are made anew when their pages change.
        self._held: list[npt.NDArray[np.int32] | None] = [None] * n_sequences
        # What was written last of each input: some arrays come with many chunks.
        self._written: dict[str, Any] = {}

    def write(self, chunk: Chunk) -> None:
        """Take a chunk's numbers, which `send` brings to the device, and bring its tables.

        RuntimeFailure for more sequences than there is room for.
        """
        n_sequences = len(chunk.state_in)
        if n_sequences > self._room[SEQUENCE]:
            raise RuntimeFailure(
                f"pass: {n_sequences} sequences, at most {self._room[SEQUENCE]} in one"
            )
        self._staging.settle()
        positions = chunk.positions
        is_step = n_sequences == len(positions)
        values: dict[str, Any] = {
            "ids": chunk.ids, "positions": positions, "slots": chunk.slots,
            "seq_of_token": chunk.seq_of_token, "rows": chunk.rows,
            "first": positions if is_step else positions[chunk.starts[:-1]],
            "state_in": chunk.state_in, "state_out": chunk.state_out, "starts": chunk.starts,
        }
        # Nothing is known to lie there while it is written.
        written, self._written = self._written, {}
        host, begin_of = self._host, self._at
        for name, cells in values.items():
            if written.get(name) is not cells:
                at = begin_of[name]
                host[at : at + len(cells)] = cells
        self._written = values
        held = self._held
        for row, table in enumerate(chunk.tables):
            if held[row] is not table:
                self._bring_table(row, table)

    def send(self) -> None:
        """Put the copy of what was written on the stream."""
        self._staging.send(self._all, self._host)

    def send_rows(self, rows: npt.NDArray[np.intp]) -> None:
        """Make these the first of the rows that want logits."""
        self._staging.settle()
        self._staging.begin()
        self._written.pop("rows", None)
        part = slice(self._at["rows"], self._at["rows"] + len(rows))
        self._host[part] = rows
        self._staging.send(self._all[part], self._host[part])

    def named(self, n_rows: int, n_sequences: int) -> dict[str, Any]:
        """Views for a pass of so many rows and sequences, as steps name them."""
        counts = {ROW: n_rows, SEQUENCE: n_sequences, BORDER: n_sequences + 1}
        found = {
            name: self._all[self._at[name] : self._at[name] + counts[kind]]
            for name, kind in INPUTS.items()
        }
        return {**found, "pages": self._pages[:n_sequences]}

    def _bring_table(self, row: int, cells: npt.NDArray[np.int32]) -> None:
        """Upload the pages of a sequence's cells."""
        pages = cells[::PAGE_TOKENS] // PAGE_TOKENS
        self._tables[row, : len(pages)] = pages
        self._staging.begin()
        self._staging.send(self._pages[row], self._tables[row])
        self._held[row] = cells
