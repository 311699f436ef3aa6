"""Owns resident prefixes: sequences kept under an id inside the runtime, to start sessions from.

A prefix shares its cells with the session that saved it. A recurrent state has no shorter form, so
with one a prefix carries a copy of the state it was saved with, and is restored at exactly that
length or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import InvalidArgument, Unsupported
from engine.evaluate import check_tokens
from engine.kv_cache import KvSequence
from engine.recurrent import Snapshot

if TYPE_CHECKING:
    from engine.session import Session

# The host allocates prefix ids below this.
MAX_SEQUENCE_ID = 1024


@dataclass(frozen=True)
class Prefix:
    """A kept sequence: its cells, and the recurrent state after all of them, if there is one."""

    cells: KvSequence
    snapshot: Snapshot | None


def save(session: Session, sequence_id: int, n_tokens: int) -> None:
    """Keep the first n tokens under an id, replacing what it held; n = 0 leaves it empty.

    Unsupported when a recurrent state exists and is not the one after n tokens; RuntimeFailure
    when its tokens are not those of the cells.
    """
    model = session.model
    with model.running(session):
        _check_id(model.options.n_lanes, sequence_id)
        held = min(session.position, session.cells.length)
        if n_tokens > held:
            raise InvalidArgument(f"save prefix: {n_tokens} tokens, the session has {held}")
        snapshot = None
        if session.state.exists and n_tokens:
            if n_tokens != session.state.n_tokens:
                raise Unsupported(
                    f"save prefix: the recurrent state is of {session.state.n_tokens} tokens, "
                    f"{n_tokens} were asked for"
                )
            session.state.check(session.cells, n_tokens)
            snapshot = session.state.snapshot()
        known = model.prefixes.get(sequence_id)
        cells = known.cells if known else model.pool.sequence()
        model.pool.share(session.cells, n_tokens, cells)
        model.prefixes[sequence_id] = Prefix(cells, snapshot)


def restore(session: Session, sequence_id: int, tokens: Sequence[int]) -> None:
    """Make the session exactly the first len(tokens) tokens of a saved prefix; 0 empties it."""
    model = session.model
    n_tokens = len(tokens)
    with model.locked(session):
        _check_id(model.options.n_lanes, sequence_id)
        if tokens:
            check_tokens(tokens, model.plan.n_vocab)
        prefix = model.prefixes.get(sequence_id)
        n_saved = prefix.cells.length if prefix else 0
        if n_tokens > n_saved:
            raise InvalidArgument(
                f"restore prefix: {n_tokens} tokens wanted, sequence {sequence_id} has {n_saved}"
            )
        if prefix is not None and prefix.snapshot is not None and 0 < n_tokens < n_saved:
            raise Unsupported(
                f"restore prefix: {n_tokens} of {n_saved} tokens; a recurrent state has no "
                "shorter form"
            )
        if prefix is None or n_tokens == 0:
            model.pool.truncate(session.cells, 0)
            session.state.clear()
        else:
            model.pool.share(prefix.cells, n_tokens, session.cells)
            if prefix.snapshot is not None:
                session.state.restore(prefix.snapshot)
        session.adopt(tokens)


def drop(session: Session, sequence_id: int) -> None:
    """Forget a saved prefix; unknown ids are fine."""
    model = session.model
    with model.locked(session):
        _check_id(model.options.n_lanes, sequence_id)
        prefix = model.prefixes.pop(sequence_id, None)
        if prefix is not None:
            model.pool.drop(prefix.cells)


def _check_id(n_lanes: int, sequence_id: int) -> None:
    if not 2 * n_lanes <= sequence_id < MAX_SEQUENCE_ID:
        raise InvalidArgument(
            f"prefix: id {sequence_id} is outside {2 * n_lanes}..{MAX_SEQUENCE_ID - 1}"
        )
