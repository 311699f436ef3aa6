"""Owns how a session goes back: verify checkpoints, and trimming to an earlier length.

Attention cells roll back by length alone. A recurrent state does not: a verify call keeps a copy
of the state it began with, and trimming into its window restores the copy and runs the accepted
tokens again, so that the result is bit for bit that of the straight run. Without a copy that
covers the target a model with recurrent state refuses, and nothing has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from engine.chunks import Work
from engine.errors import InvalidArgument, RuntimeFailure, Unsupported
from engine.evaluate import evaluate
from engine.recurrent import Snapshot

if TYPE_CHECKING:
    from engine.session import Session

MAX_CHECKPOINTS = 64


@dataclass(frozen=True)
class Checkpoint:
    """The state before a verified window, and the window itself."""

    snapshot: Snapshot
    tokens: tuple[int, ...]
    hidden: npt.NDArray[np.float32] | None

    @property
    def start(self) -> int:
        return self.snapshot.n_tokens

    def covers(self, n_tokens: int) -> bool:
        """Whether the window's restored state can be run on to `n_tokens` tokens."""
        return self.start <= n_tokens < self.start + len(self.tokens)


class Checkpoints:
    """The live checkpoints of one session, oldest first; none for attention-only models."""

    def __init__(self) -> None:
        self._kept: list[Checkpoint] = []

    def check_room(self) -> None:
        """Raise Unsupported when one more would be too many."""
        if len(self._kept) >= MAX_CHECKPOINTS:
            raise Unsupported(f"verify: {len(self._kept)} checkpoints are live, none is free")

    def keep(self, snapshot: Snapshot, window: Work) -> None:
        """Remember the state that a window began with."""
        self._kept.append(Checkpoint(snapshot, tuple(window.tokens), window.hidden))

    def retire(self, start: int, count: int) -> None:
        """Forget exactly this window; InvalidArgument when it is not live."""
        for checkpoint in self._kept:
            if (checkpoint.start, len(checkpoint.tokens)) == (start, count):
                self._kept.remove(checkpoint)
                return
        raise InvalidArgument(f"retire: no live checkpoint of {count} tokens from {start}")

    def covering(self, n_tokens: int) -> Checkpoint | None:
        """The newest checkpoint from which `n_tokens` can be reached."""
        return next((c for c in reversed(self._kept) if c.covers(n_tokens)), None)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()


def retire(session: Session, start: int, count: int) -> None:
    """Give up the checkpoint of an accepted window; attention-only models have none to give up."""
    with session.model.locked(session):
        if session.state.exists:
            session.checkpoints.retire(start, count)


def trim(session: Session, n_tokens: int) -> None:
    """Keep the first `n_tokens` tokens.

    InvalidArgument beyond the position; RuntimeFailure when a recurrent state cannot go there.
    """
    with session.model.running(session):
        if n_tokens > session.position:
            raise InvalidArgument(
                f"trim: {n_tokens} tokens wanted, position is {session.position}"
            )
        history = session.history[:n_tokens]
        is_shorter = len(history) < len(session.history)
        if session.state.exists and session.state.n_tokens != n_tokens:
            _return_state(session, n_tokens)
        elif n_tokens < session.position:
            session.last_row = None
        if n_tokens < session.cells.length:
            session.model.pool.truncate(session.cells, n_tokens)
        session.position = n_tokens
        session.history = history
        del session.signals[n_tokens:]
        session.checkpoints.clear()
        if is_shorter:
            session.shortened()


def _return_state(session: Session, n_tokens: int) -> None:
    """Bring the recurrent state to `n_tokens`: empty, or restored and run again."""
    if n_tokens == 0:
        session.state.clear()
        session.last_row = None
        return
    checkpoint = session.checkpoints.covering(n_tokens)
    if checkpoint is None:
        raise RuntimeFailure(
            f"trim: the recurrent state of {session.state.n_tokens} tokens cannot go back to "
            f"{n_tokens}; no live verify checkpoint covers it"
        )
    session.state.restore(checkpoint.snapshot)
    session.model.pool.truncate(session.cells, checkpoint.start)
    session.position = checkpoint.start
    session.last_row = None
    n_again = n_tokens - checkpoint.start
    if not n_again:
        return
    hidden = None if checkpoint.hidden is None else checkpoint.hidden[:n_again]
    rows: Literal["none", "last"] = "none" if session.model.plan.gives_hidden else "last"
    try:
        window = Work(session, checkpoint.tokens[:n_again], rows, hidden)
        evaluate(session.model, [window]).commit()
    except BaseException:
        session.needs_reset = True
        raise
