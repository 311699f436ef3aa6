"""Owns how the works of a pass become chunks: rows of all sessions, as many at once as a program
takes.

A step of decoding, one token for each session, is put together from whole numbers: it comes every
few milliseconds, and the device waits for it. It must not know programs nor results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from engine.chunk import Chunk
from engine.kv_cache import PAGE_TOKENS
from engine.sampling import DrawRequest

if TYPE_CHECKING:
    from engine.session import Session

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens to evaluate behind a session's position, and which rows want logits.

    `hidden` float32 [n_tokens, D] are the rows of the stage before, where the stage takes them.
    `ask` makes what the last row will be asked to draw, where that is known beforehand.
    """

    session: Session
    tokens: Sequence[int]
    rows: Literal["none", "last", "all"]
    hidden: npt.NDArray[np.float32] | None = None
    ask: Callable[[], DrawRequest] | None = None


def chunks_of(works: Sequence[Work], max_rows: int) -> Iterator[tuple[Chunk, Sequence[int]]]:
    """The chunks of a pass, in order, each with the work of every row that wants logits.

    The next one is asked for once the one before has been run: sequences go on in the slots that
    it writes.
    """
    rows = works[0].rows
    if len(works) <= max_rows and all(
        len(w.tokens) == 1 and w.hidden is None and w.rows == rows for w in works
    ):
        yield _step(works, rows != "none")
    else:
        yield from _flattened(works, max_rows)


def _step(works: Sequence[Work], wants: bool) -> tuple[Chunk, Sequence[int]]:
    """One token for each work."""
    numbers: list[list[int]] = [[], [], [], [], []]
    ids, positions, slots, state_in, state_out = numbers
    tables = []
    for work in works:
        session = work.session
        cells, state, position = session.cells, session.state, session.position
        page, offset = divmod(position, PAGE_TOKENS)
        ids.append(work.tokens[0])
        positions.append(position)
        slots.append(PAGE_TOKENS * cells.pages[page] + offset)
        state_in.append(state.live)
        state_out.append(state.spare)
        tables.append(cells.cells())
    order, starts, every = _one_each(len(works))
    made = np.array(numbers, np.int32)
    return Chunk(
        made[0], made[1], made[2], order, tables, starts, made[3], made[4],
        every if wants else every[:0], None,
    ), range(len(works) if wants else 0)  # fmt: skip


@lru_cache
def _one_each(n_works: int) -> tuple[I32, I32, npt.NDArray[np.intp]]:
    """What is the same for all steps of so many works: sequences, borders, rows."""
    borders = np.arange(n_works + 1, dtype=np.int32)
    every = np.arange(n_works)
    for cells in (borders, every):
        cells.setflags(write=False)
    return borders[:-1], borders, every


def _flattened(works: Sequence[Work], max_rows: int) -> Iterator[tuple[Chunk, Sequence[int]]]:
    """Rows of all works, one work behind the other, cut at every `max_rows`."""
    ids = np.concatenate([np.asarray(work.tokens, np.int32) for work in works])
    owner = np.repeat(np.arange(len(works), dtype=np.int32), [len(w.tokens) for w in works])
    positions = np.concatenate([
        np.arange(w.session.position, w.session.position + len(w.tokens), dtype=np.int32)
        for w in works
    ])
    wants = np.concatenate([_wanted(work) for work in works])
    slots = np.concatenate([
        w.session.cells.cells()[w.session.position : w.session.position + len(w.tokens)]
        for w in works
    ])
    given = [work.hidden for work in works if work.hidden is not None]
    hidden = np.concatenate(given) if given else None
    begun: set[int] = set()
    for start in range(0, len(ids), max_rows):
        part = slice(start, start + max_rows)
        rows = np.flatnonzero(wants[part])
        chunk = Chunk(
            ids[part], positions[part], slots[part], *_sequences(works, owner[part], begun), rows,
            None if hidden is None else hidden[part],
        )
        yield chunk, owner[part][rows].tolist()


def _sequences(
    works: Sequence[Work], owner: I32, begun: set[int]
) -> tuple[I32, list[I32], I32, I32, I32]:
    """Of a chunk whose rows are of these works: the sequence of each row, and of the sequences
    their cell tables, row starts and state slots.

    A sequence's first chunk reads its live slot; later ones go on in the slot they write.
    """
    # Rows of a work are neighbours.
    first = [0, *(np.flatnonzero(owner[1:] != owner[:-1]) + 1).tolist()]
    present = owner[first].tolist()
    states = [works[index].session.state for index in present]
    state_in = [
        state.spare if index in begun else state.live
        for index, state in zip(present, states, strict=True)
    ]
    begun.update(present)
    # Works without a row here lie before or behind those that have some.
    return (
        owner - owner[0],
        [works[index].session.cells.cells() for index in present],
        np.asarray([*first, len(owner)], np.int32),
        np.asarray(state_in, np.int32),
        np.asarray([state.spare for state in states], np.int32),
    )


def _wanted(work: Work) -> npt.NDArray[np.bool_]:
    wanted = np.full(len(work.tokens), work.rows == "all")
    wanted[-1] = work.rows != "none"
    return wanted
