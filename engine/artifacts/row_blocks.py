"""Owns walking over a large tensor of a mapped file in blocks of rows, in bounded memory.

Knows nothing of formats. A page of a mapping counts as this process's memory from its first read
on; a walk over a file larger than memory therefore gives back what it has passed.
"""

import mmap
from collections.abc import Iterator

BLOCK_BYTES = 4 << 20


def row_ranges(n_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges (start, stop) that cover the rows in order, each of about `BLOCK_BYTES`."""
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, n_rows, step):
        yield start, min(start + step, n_rows)


def forget(view: memoryview, start: int, stop: int) -> None:
    """Give back the memory of bytes [start, stop) of a mapped file; they can be read again."""
    mapped = view.obj
    if isinstance(mapped, mmap.mmap) and stop > start:
        first = start - start % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, stop - first)
