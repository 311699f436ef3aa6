"""Owns one forward pass over rows of several sessions: checks, room, chunks, commit or roll back.

A pass reads sessions and fills their cells, and advances nothing: `commit` does, once the caller
has chosen its tokens. Rows of different sessions share a chunk, and on the `host` device neither
that nor the chunk's length changes a row's result (KNOWLEDGE/findings/row-invariant-linear.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.chunks import Work, chunks_of
from engine.errors import EngineError, InvalidArgument, RuntimeFailure, Unsupported
from engine.logits import LogitsRow
from engine.trail import marks_after

if TYPE_CHECKING:
    from engine.model import Model
    from engine.session import Session


class Evaluation:
    """The outcome of a pass, not yet committed.

    For work i `logits[i]` are the rows that wanted them, and `hidden[i]` float32 [n_tokens, D] on a
    stage that gives hidden rows, else None.
    """

    def __init__(self, works: Sequence[Work]) -> None:
        self.works = works
        self.logits: list[list[LogitsRow]] = []
        self.hidden: list[npt.NDArray[np.float32] | None] = []
        # Of each work the marks of its tokens, made while a device runs the pass.
        self._marks: list[list[int]] = []

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
        for work, rows, marks in zip(self.works, self.logits, self._marks, strict=True):
            session, cells = work.session, work.session.cells
            cells.marks += marks
            cells.length = session.position = session.position + len(work.tokens)
            session.state.advance(session.position, marks[-1])
            session.history.extend(work.tokens[:n_seen])
            session.last_row = rows[-1].kept() if rows else None

    def roll_back(self) -> None:
        """Give back the cells that this pass took; positions were never touched."""
        for work in self.works:
            work.session.model.pool.truncate(work.session.cells, work.session.position)

    def guarded(self) -> Guard:
        """A context: roll back when choosing a token from the rows fails."""
        return Guard(self)

    def make_marks(self) -> None:
        """What `commit` needs and no result changes."""
        self._marks = [
            marks_after(work.session.cells.mark(work.session.position), work.tokens)
            for work in self.works
        ]


class Guard:
    """Rolls a pass back when its body fails."""

    __slots__ = ("_evaluation",)

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._evaluation.roll_back()


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
        # A device may still be at it: the check asks for its answers.
        _expect_draws(evaluation)
        evaluation.make_marks()
        _check_finite(evaluation)
    return evaluation


def _expect_draws(evaluation: Evaluation) -> None:
    """Tell rows what they will be asked to draw, so that it is drawn with the pass."""
    for work, rows in zip(evaluation.works, evaluation.logits, strict=True):
        if work.ask is not None and rows:
            # What cannot be asked is refused when the token is chosen.
            with suppress(EngineError):
                rows[-1].expect(work.ask)


def _check_finite(evaluation: Evaluation) -> None:
    """Mark every session whose logits hold a NaN or infinity, and refuse the pass."""
    broken = []
    for work, rows, hidden in zip(
        evaluation.works, evaluation.logits, evaluation.hidden, strict=True
    ):
        if hidden is None:
            is_fine = all([row.is_finite() for row in rows])
        else:
            is_fine = bool(np.isfinite(hidden).all())
        if not is_fine:
            broken.append(work.session)
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
    """Run the works in chunks, hand each work its logits and rows."""
    logits: list[list[LogitsRow]] = [[] for _ in works]
    hidden_out: list[npt.NDArray[np.float32]] = []
    for chunk, owners in chunks_of(works, model.program.max_rows):
        out, hidden = model.program.run(chunk)
        for row, owner in zip(out, owners, strict=True):
            logits[owner].append(row)
        if hidden is not None:
            hidden_out.append(hidden)
    if not hidden_out:
        return logits, [None] * len(works)
    ends = np.cumsum([len(work.tokens) for work in works])[:-1]
    return logits, list(np.split(np.concatenate(hidden_out), ends))
