"""Owns one forward pass over rows of several sessions: checks, room, chunks, commit or roll back.

A pass reads sessions and fills their cells, and advances nothing: `commit` does, once the caller
has chosen its tokens. Rows of different sessions share a chunk, and on the `host` device neither
that nor the chunk's length changes a row's result (KNOWLEDGE/findings/row-invariant-linear.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from engine.chunk import Chunk
from engine.errors import InvalidArgument, RuntimeFailure, Unsupported
from engine.logits import LogitsRow
from engine.trail import marks_after

if TYPE_CHECKING:
    from engine.model import Model
    from engine.session import Session


@dataclass(frozen=True)
class Work:
    """Tokens to evaluate behind a session's position, and which rows want logits.

    `hidden` float32 [n_tokens, D] are the rows of the stage before, where the stage takes them.
    """

    session: Session
    tokens: Sequence[int]
    rows: Literal["none", "last", "all"]
    hidden: npt.NDArray[np.float32] | None = None


class Evaluation:
    """The outcome of a pass, not yet committed.

    For work i `logits[i]` are the rows that wanted them, and `hidden[i]` float32 [n_tokens, D] on a
    stage that gives hidden rows, else None.
    """

    def __init__(self, works: Sequence[Work]) -> None:
        self.works = works
        self.logits: list[list[LogitsRow]] = []
        self.hidden: list[npt.NDArray[np.float32] | None] = []

    @property
    def rows(self) -> list[npt.NDArray[np.float32]]:
        """Each work's logits in main memory, float32 [n_rows, V]."""
        n_vocab = self.works[0].session.model.plan.n_vocab
        return [
            np.stack([row.array() for row in rows]) if rows
            else np.zeros((0, n_vocab), np.float32)
            for rows in self.logits
        ]

    def commit(self, n_seen: int | None = None) -> None:
        """Advance every session by its tokens; `n_seen` caps what enters the history."""
        for work, rows in zip(self.works, self.logits, strict=True):
            session, cells = work.session, work.session.cells
            cells.marks += marks_after(cells.mark(session.position), work.tokens)
            cells.length = session.position = session.position + len(work.tokens)
            session.state.advance(session.position, cells.mark(session.position))
            session.history.extend(work.tokens[:n_seen])
            session.last_row = rows[-1].kept() if rows else None

    def roll_back(self) -> None:
        """Give back the cells that this pass took; positions were never touched."""
        for work in self.works:
            work.session.model.pool.truncate(work.session.cells, work.session.position)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Roll back when choosing a token from the rows fails."""
        try:
            yield
        except BaseException:
            self.roll_back()
            raise


def evaluate(model: Model, works: Sequence[Work]) -> Evaluation:
    """Run all works in one pass.

    Raises InvalidArgument for bad tokens and RuntimeFailure for no room or non-finite logits;
    no session has moved then, and one whose logits were not finite needs a reset.
    """
    for work in works:
        check_tokens(work.tokens, model.plan.n_vocab)
        if work.rows == "all" and len(work.tokens) > model.program.max_rows:
            raise InvalidArgument(
                f"verify: {len(work.tokens)} tokens, at most {model.program.max_rows} in one call"
            )
        _check_hidden(model, work)
        _check_cells(work.session)
    model.pool.reserve([(w.session.cells, w.session.position, len(w.tokens)) for w in works])
    evaluation = Evaluation(works)
    with evaluation.guarded():
        evaluation.logits, evaluation.hidden = _run(model, works)
        _check_finite(evaluation)
    return evaluation


def _check_finite(evaluation: Evaluation) -> None:
    """Mark every session whose logits hold a NaN or infinity, and refuse the pass."""
    broken = [
        work.session
        for work, rows, hidden in zip(
            evaluation.works, evaluation.logits, evaluation.hidden, strict=True
        )
        if not (
            all(row.is_finite() for row in rows) if hidden is None else np.isfinite(hidden).all()
        )
    ]
    for session in broken:
        session.needs_reset = True
    if broken:
        places = ", ".join(f"lane {s.lane} at position {s.position}" for s in broken)
        raise RuntimeFailure(
            f"forward: results are not finite for the session on {places}; it needs a reset"
        )


def check_tokens(tokens: Sequence[int], n_vocab: int) -> None:
    """Raise InvalidArgument naming the first id outside the vocabulary, or an empty list."""
    if not tokens:
        raise InvalidArgument("tokens: 0 given, at least 1 needed")
    for index, token in enumerate(tokens):
        if not 0 <= token < n_vocab:
            raise InvalidArgument(
                f"tokens: id {token} at index {index} of {len(tokens)} is outside 0..{n_vocab - 1}"
            )


def _check_hidden(model: Model, work: Work) -> None:
    """A stage gets what it takes, and is not asked for logits that it cannot give."""
    plan = model.plan
    if plan.gives_hidden and work.rows != "none":
        raise Unsupported(f"stage of layers {plan.layer_range}: it has no output to choose from")
    if plan.takes_hidden != (work.hidden is not None):
        takes = "needs the hidden rows of the one before" if plan.takes_hidden else "takes no rows"
        raise InvalidArgument(f"stage of layers {plan.layer_range}: {takes}")


def _check_cells(session: Session) -> None:
    """A position without cells, or with the recurrent state of other tokens, cannot run."""
    if session.cells.length < session.position:
        raise RuntimeFailure(
            f"forward: position {session.position} has KV for {session.cells.length} tokens only"
        )
    session.state.check(session.cells, session.position)


def _run(
    model: Model, works: Sequence[Work]
) -> tuple[list[list[LogitsRow]], list[npt.NDArray[np.float32] | None]]:
    """Flatten the works into rows, run them in chunks, hand each work its logits and rows."""
    ids = np.concatenate([np.asarray(work.tokens, np.int32) for work in works])
    owner = np.repeat(np.arange(len(works), dtype=np.int32), [len(w.tokens) for w in works])
    positions = np.concatenate([
        np.arange(w.session.position, w.session.position + len(w.tokens), dtype=np.int32)
        for w in works
    ])
    wants = np.concatenate([_wanted(work) for work in works])
    tables = [work.session.cells.cells() for work in works]
    slots = np.concatenate([
        table[w.session.position : w.session.position + len(w.tokens)]
        for w, table in zip(works, tables, strict=True)
    ])
    logits: list[list[LogitsRow]] = [[] for _ in works]
    given = [work.hidden for work in works if work.hidden is not None]
    hidden_in = np.concatenate(given) if given else None
    hidden_out: list[npt.NDArray[np.float32]] = []
    begun: set[int] = set()
    for start in range(0, len(ids), model.program.max_rows):
        part = slice(start, start + model.program.max_rows)
        chosen = np.flatnonzero(wants[part])
        out, hidden = model.program.run(Chunk(
            ids[part], positions[part], slots[part], owner[part], tables,
            *_sequences(works, owner[part], begun), chosen,
            None if hidden_in is None else hidden_in[part],
        ))
        for row, index in zip(out, chosen, strict=True):
            logits[owner[part][index]].append(row)
        if hidden is not None:
            hidden_out.append(hidden)
    if not hidden_out:
        return logits, [None for _ in works]
    ends = np.cumsum([len(work.tokens) for work in works])[:-1]
    return logits, list(np.split(np.concatenate(hidden_out), ends))


def _sequences(
    works: Sequence[Work], owner: npt.NDArray[np.int32], begun: set[int]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Row starts and state slots of the sequences in a chunk.

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
    return (
        np.asarray([*first, len(owner)], np.int32),
        np.asarray(state_in, np.int32),
        np.asarray([state.spare for state in states], np.int32),
    )


def _wanted(work: Work) -> npt.NDArray[np.bool_]:
    wanted = np.full(len(work.tokens), work.rows == "all")
    wanted[-1] = work.rows != "none"
    return wanted
