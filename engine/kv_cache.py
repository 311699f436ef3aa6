"""Owns the KV pool of one model: pages, the sequences that hold them, the cells in use.

A cell is the K and V rows of one token in every layer. Cells come in pages of PAGE_TOKENS; a
sequence is a list of pages and a length. Pages are shared between sequences (prefix cache) and
copied when a holder writes into a page that others hold too. The limit that callers see counts
cells, not pages: `n_cells` tokens fit whatever the fragmentation, because the pool keeps one spare
page for each sequence that can exist. It must not know sessions, tokens or models.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine.errors import RuntimeFailure

PAGE_TOKENS = 16
# Every sequence may leave one page partly filled; lanes and resident prefixes are sequences.
SPARE_PAGES = 256


class KvSequence:
    """One timeline's cells: `pages` in position order; the first `length` cells are used."""

    def __init__(self, home: int = 0) -> None:
        self.pages: list[int] = []
        self.length = 0
        self.home = home
        self._cells: npt.NDArray[np.int32] = np.zeros(0, np.int32)

    def cells(self) -> npt.NDArray[np.int32]:
        """Cache rows of this sequence in position order, capacity included: i32 [pages * 16]."""
        if len(self._cells) != len(self.pages) * PAGE_TOKENS:
            first = np.asarray(self.pages, np.int32)[:, None] * PAGE_TOKENS
            cells = first + np.arange(PAGE_TOKENS, dtype=np.int32)
            self._cells = cells.reshape(-1).astype(np.int32)
        return self._cells

    def forget_cells(self) -> None:
        """Drop the derived table after the page list changed without changing its length."""
        self._cells = np.zeros(0, np.int32)


class KvPool:
    """Page allocator of one model with `n_cells` tokens for all its sequences together."""

    def __init__(self, n_cells: int, copy_page: Callable[[int, int], None]) -> None:
        self.n_cells = n_cells
        self.n_pages = -(-n_cells // PAGE_TOKENS) + SPARE_PAGES
        self._copy_page = copy_page
        self._holders = [0] * self.n_pages
        self._sequences: list[KvSequence] = []

    def sequence(self, home_fraction: float = 0.0) -> KvSequence:
        """A new empty sequence; `home_fraction` in [0, 1) spreads sequences over the pool, so that
        each one tends to get neighbouring pages."""
        made = KvSequence(int(home_fraction * self.n_pages))
        self._sequences.append(made)
        return made

    def used_cells(self) -> int:
        """Cells in use by all sequences; a shared cell counts once."""
        fill: dict[int, int] = {}
        for sequence in self._sequences:
            for index, page in enumerate(sequence.pages):
                filled = min(PAGE_TOKENS, sequence.length - index * PAGE_TOKENS)
                fill[page] = max(fill.get(page, 0), filled)
        return sum(fill.values())

    def reserve(self, wanted: list[tuple[KvSequence, int]]) -> None:
        """Make room for `n` more cells behind each sequence's length, for all or for none.

        Raises RuntimeFailure with used, wanted and total cells; lengths do not change here.
        """
        total = sum(n for _, n in wanted)
        # The sum of lengths bounds the cells in use from above, and is cheap.
        if sum(s.length for s in self._sequences) + total > self.n_cells:
            used = self.used_cells()
            if used + total > self.n_cells:
                raise RuntimeFailure(
                    f"KV cache: {used} cells used, {total} more wanted, {self.n_cells} in total"
                )
        before = [(sequence, len(sequence.pages)) for sequence, _ in wanted]
        try:
            for sequence, n in wanted:
                self._own_tail(sequence)
                while len(sequence.pages) * PAGE_TOKENS < sequence.length + n:
                    sequence.pages.append(self._take(sequence))
        except RuntimeFailure:
            for sequence, n_pages in before:
                self._release(sequence, n_pages)
            raise

    def truncate(self, sequence: KvSequence, length: int) -> None:
        """Keep the first `length` cells and give back pages that hold none of them."""
        sequence.length = length
        self._release(sequence, -(-length // PAGE_TOKENS))

    def share(self, source: KvSequence, length: int, into: KvSequence) -> None:
        """Make `into` the first `length` cells of `source`; it gives up what it held before."""
        pages = source.pages[: -(-length // PAGE_TOKENS)]
        for page in pages:
            self._holders[page] += 1
        self.truncate(into, 0)
        into.pages = pages
        into.length = length
        into.forget_cells()

    def drop(self, sequence: KvSequence) -> None:
        """Give back all cells and forget the sequence."""
        self.truncate(sequence, 0)
        self._sequences.remove(sequence)

    def _own_tail(self, sequence: KvSequence) -> None:
        """Copy every page at or behind the length that others hold too, before it is written."""
        for index in range(sequence.length // PAGE_TOKENS, len(sequence.pages)):
            self.own(sequence, index)

    def own(self, sequence: KvSequence, index: int) -> None:
        """Make page `index` of the sequence its own, copying it when others hold it too."""
        page = sequence.pages[index]
        if self._holders[page] > 1:
            fresh = self._take(sequence)
            self._copy_page(page, fresh)
            self._holders[page] -= 1
            sequence.pages[index] = fresh
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
            f"{len(self._sequences)} sequences"
        )

    def _release(self, sequence: KvSequence, n_pages: int) -> None:
        for page in sequence.pages[n_pages:]:
            self._holders[page] -= 1
        del sequence.pages[n_pages:]
