"""Owns the KV pool of one model: pages, the sequences that hold them, the cells in use.

A cell is the K and V rows of one token in every layer. Rows live in pages of PAGE_TOKENS; a
sequence is a list of pages and a length. Pages are shared between sequences (prefix cache) and
copied when a holder writes into a page that others hold too. The limit that callers see counts
cells, not pages: a cell that sequences share counts once, even after one of them had to copy the
page around it. Spare pages make up for such copies and for partly filled pages; a crowd of more
sequences than SPARE_PAGES may run out of pages first, and is told so. It must not know sessions,
tokens or models.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import RuntimeFailure
from engine.trail import EMPTY

PAGE_TOKENS = 16
# Every sequence may leave one page partly filled; lanes and resident prefixes are sequences.
SPARE_PAGES = 256


def pages_for(n_cells: int) -> int:
    """Pages of a pool with `n_cells` cells, spare ones included."""
    return -(-n_cells // PAGE_TOKENS) + SPARE_PAGES


class KvSequence:
    """One timeline's cells: `pages` in position order; the first `length` cells are used.

    `marks` has one for each of them: which tokens the rows up to there are of.
    """

    def __init__(self, home: int = 0) -> None:
        self.pages: list[int] = []
        # One entry for each reserved cell: what the pool counts, whichever page has the rows.
        self.counted: list[int] = []
        self.marks: list[int] = []
        self.length = 0
        self.home = home
        self._cells: npt.NDArray[np.int32] | None = None

    def cells(self) -> npt.NDArray[np.int32]:
        """Cache rows of this sequence in position order, capacity included: i32 [pages * 16]."""
        if self._cells is None:
            first = np.asarray(self.pages, np.int32)[:, None] * PAGE_TOKENS
            cells = first + np.arange(PAGE_TOKENS, dtype=np.int32)
            self._cells = cells.reshape(-1).astype(np.int32)
        return self._cells

    def mark(self, n_cells: int) -> int:
        """The mark behind the first `n_cells` used cells."""
        return self.marks[n_cells - 1] if n_cells else EMPTY

    def forget_cells(self) -> None:
        """Drop the derived table; whoever changes `pages` calls this. The table itself is never
        changed, so that one who has it sees by its identity whether pages are the same."""
        self._cells = None


class KvPool:
    """Page allocator of one model with `n_cells` tokens for all its sequences together."""

    def __init__(self, n_cells: int, copy_page: Callable[[int, int], None]) -> None:
        self.n_cells = n_cells
        self.n_pages = pages_for(n_cells)
        self._copy_page = copy_page
        self._holders = [0] * self.n_pages
        self._cell_holders: list[int] = []
        self._free_cells: list[int] = []
        self._n_sequences = 0

    def sequence(self, home_fraction: float = 0.0) -> KvSequence:
        """A new empty sequence; `home_fraction` in [0, 1) spreads sequences over the pool, so that
        each one tends to get neighbouring pages."""
        self._n_sequences += 1
        return KvSequence(int(home_fraction * self.n_pages))

    def used_cells(self) -> int:
        """Cells in use by all sequences; a shared cell counts once."""
        return len(self._cell_holders) - len(self._free_cells)

    def reserve(self, wanted: Sequence[tuple[KvSequence, int, int]]) -> None:
        """Make room for (sequence, start, n): n cells behind its first `start`, for all or none.

        Cells behind `start` are given up. Raises RuntimeFailure with used, wanted and total cells;
        lengths do not grow here.
        """
        n_new, used = 0, self.used_cells()
        for sequence, start, n in wanted:
            n_new += n
            if len(sequence.counted) > start:
                used -= self._sole_cells(sequence, start)
        if used + n_new > self.n_cells:
            raise RuntimeFailure(
                f"KV cache: {used} cells used, {n_new} more wanted, {self.n_cells} in total"
            )
        for sequence, start, _ in wanted:
            self.truncate(sequence, start)
        try:
            for sequence, start, n in wanted:
                self._make_pages(sequence, start, start + n)
        except RuntimeFailure:
            for sequence, start, _ in wanted:
                self.truncate(sequence, start)
            raise
        for sequence, _, n in wanted:
            self._count(sequence, n)

    def replace(self, sequence: KvSequence, n_kept: int, length: int) -> None:
        """Make the sequence `length` cells long, with its own pages from cell `n_kept` on.

        Rows that were there keep their values; the caller sets the marks of those that it writes.
        RuntimeFailure, and no change, without room.
        """
        n_new = length - n_kept
        used = self.used_cells() - self._sole_cells(sequence, n_kept)
        if used + n_new > self.n_cells:
            raise RuntimeFailure(
                f"KV cache: {used} cells used, {n_new} more wanted, {self.n_cells} in total"
            )
        n_pages = len(sequence.pages)
        try:
            self._make_pages(sequence, n_kept, length)
        except RuntimeFailure:
            self._release_pages(sequence, n_pages)
            raise
        self._release_cells(sequence, n_kept)
        self._count(sequence, n_new)
        self.truncate(sequence, length)

    def truncate(self, sequence: KvSequence, length: int) -> None:
        """Keep the first `length` cells and give back pages that hold none of them."""
        sequence.length = length
        del sequence.marks[length:]
        if len(sequence.counted) > length:
            self._release_cells(sequence, length)
        self._release_pages(sequence, -(-length // PAGE_TOKENS))

    def share(self, source: KvSequence, length: int, into: KvSequence) -> None:
        """Make `into` the first `length` cells of `source`; it gives up what it held before."""
        pages = source.pages[: -(-length // PAGE_TOKENS)]
        counted = source.counted[:length]
        for page in pages:
            self._holders[page] += 1
        for cell in counted:
            self._cell_holders[cell] += 1
        self.truncate(into, 0)
        into.pages, into.counted, into.length = pages, counted, length
        into.marks = source.marks[:length]
        into.forget_cells()

    def drop(self, sequence: KvSequence) -> None:
        """Give back all cells and forget the sequence."""
        self.truncate(sequence, 0)
        self._n_sequences -= 1

    def _make_pages(self, sequence: KvSequence, start: int, end: int) -> None:
        """Pages up to cell `end`, and from cell `start` on none that others hold too."""
        for index in range(start // PAGE_TOKENS, len(sequence.pages)):
            page = sequence.pages[index]
            if self._holders[page] > 1:
                fresh = self._take(sequence)
                self._copy_page(page, fresh)
                self._holders[page] -= 1
                sequence.pages[index] = fresh
                sequence.forget_cells()
        while len(sequence.pages) * PAGE_TOKENS < end:
            sequence.pages.append(self._take(sequence))
            sequence.forget_cells()

    def _take(self, sequence: KvSequence) -> int:
        """The page after the sequence's last one if it is free, else the next free one."""
        start = sequence.pages[-1] + 1 if sequence.pages else sequence.home
        for step in range(self.n_pages):
            page = (start + step) % self.n_pages
            if not self._holders[page]:
                self._holders[page] = 1
                return page
        raise RuntimeFailure(
            f"KV cache: all {self.n_pages} pages of {PAGE_TOKENS} cells are held by "
            f"{self._n_sequences} sequences"
        )

    def _count(self, sequence: KvSequence, n: int) -> None:
        """Enter n new cells behind the sequence's counted ones."""
        for _ in range(n):
            if not self._free_cells:
                self._free_cells.append(len(self._cell_holders))
                self._cell_holders.append(0)
            cell = self._free_cells.pop()
            self._cell_holders[cell] = 1
            sequence.counted.append(cell)

    def _sole_cells(self, sequence: KvSequence, start: int) -> int:
        """Cells behind `start` that nobody else holds."""
        return sum(self._cell_holders[cell] == 1 for cell in sequence.counted[start:])

    def _release_cells(self, sequence: KvSequence, length: int) -> None:
        for cell in sequence.counted[length:]:
            self._cell_holders[cell] -= 1
            if not self._cell_holders[cell]:
                self._free_cells.append(cell)
        del sequence.counted[length:]

    def _release_pages(self, sequence: KvSequence, n_pages: int) -> None:
        if n_pages >= len(sequence.pages):
            return
        for page in sequence.pages[n_pages:]:
            self._holders[page] -= 1
        del sequence.pages[n_pages:]
        sequence.forget_cells()
