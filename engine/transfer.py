"""Owns what moves between sessions, the prefix cache and the outside: cells in and out.

Every function takes the model's lock, checks the whole input before it changes anything, and
leaves the session as it was when it refuses. Formats are in `state_codec.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine import state_codec
from engine.errors import InvalidArgument, RuntimeFailure
from engine.evaluate import check_tokens
from engine.session import Session
from engine.state_codec import KIND_PAGE, KIND_STATE, PageDesc, Span

# The host allocates prefix ids below this.
MAX_SEQUENCE_ID = 1024


# Whole sequence


def state_bytes(session: Session) -> int:
    """Size of the exported sequence; 0 for an empty one."""
    with session.model.locked(session):
        span = _whole(session)
        return state_codec.span_bytes(session.model, span) if span.token_count else 0


def export_state(session: Session) -> bytearray:
    """The whole sequence as bytes."""
    with session.model.locked(session):
        return state_codec.encode(session, _whole(session), KIND_STATE)


def import_state(session: Session, data: bytearray) -> None:
    """Replace the sequence; position becomes max(old, imported). Empty bytes change nothing."""
    model = session.model
    with model.locked(session):
        if not data:
            return
        span = state_codec.check(model, data, KIND_STATE, InvalidArgument)
        if span != Span(0, model.plan.n_layers, 0, span.token_count):
            raise RuntimeFailure(
                f"state: covers layers {span.layer_start}..{span.layer_end} from token "
                f"{span.token_start}, the whole sequence is needed"
            )
        model.pool.replace(session.cells, 0, span.token_count)
        state_codec.store(session, span, data)
        _moved_to(session, span.token_count)


def _whole(session: Session) -> Span:
    return Span(0, session.model.plan.n_layers, 0, session.cells.length)


# KV pages


def describe_page(
    session: Session, layer_start: int, layer_end: int, token_start: int, token_count: int
) -> PageDesc:
    """Descriptor of a page over tokens that must all be present; RuntimeFailure otherwise."""
    with session.model.locked(session):
        n_layers = session.model.plan.n_layers
        if not 0 <= layer_start < layer_end <= n_layers:
            raise RuntimeFailure(f"KV page: layers {layer_start}..{layer_end} of {n_layers}")
        if token_count == 0 or token_start + token_count > session.cells.length:
            raise RuntimeFailure(
                f"KV page: {token_count} tokens from {token_start}, "
                f"{session.cells.length} are present"
            )
        span = Span(layer_start, layer_end, token_start, token_count)
        return state_codec.describe(session.model, span)


def export_page(session: Session, page: PageDesc) -> bytearray:
    """The bytes of a described page."""
    with session.model.locked(session):
        describe_page(
            session, page.layer_start, page.layer_end, page.token_start, page.token_count
        )
        span = Span(page.layer_start, page.layer_end, page.token_start, page.token_count)
        return state_codec.encode(session, span, KIND_PAGE)


def import_page(session: Session, page: PageDesc, data: bytearray) -> None:
    """Write a page's rows; position becomes max(old, end of the page)."""
    model = session.model
    with model.locked(session):
        span = state_codec.check_page(model, page, data)
        end = span.token_start + span.token_count
        if span.token_start > session.cells.length:
            raise RuntimeFailure(
                f"KV page: starts at token {span.token_start}, the session holds "
                f"{session.cells.length}"
            )
        length = max(end, session.cells.length)
        model.pool.replace(session.cells, span.token_start, length)
        state_codec.store(session, span, data)
        _moved_to(session, end)


def _moved_to(session: Session, n_tokens: int) -> None:
    session.position = max(session.position, n_tokens)
    session.last_row = None


# Resident prefixes


def save_prefix(session: Session, sequence_id: int, n_tokens: int) -> None:
    """Keep the first n tokens under an id, replacing what it held; n = 0 leaves it empty."""
    model = session.model
    with model.running(session):
        _check_id(model.options.n_lanes, sequence_id)
        if n_tokens > min(session.position, session.cells.length):
            raise InvalidArgument(
                f"save prefix: {n_tokens} tokens, the session has "
                f"{min(session.position, session.cells.length)}"
            )
        prefix = model.prefixes.get(sequence_id) or model.pool.sequence()
        model.prefixes[sequence_id] = prefix
        model.pool.share(session.cells, n_tokens, prefix)


def restore_prefix(session: Session, sequence_id: int, tokens: Sequence[int]) -> None:
    """Make the session exactly the first len(tokens) tokens of a saved prefix."""
    model = session.model
    with model.locked(session):
        _check_id(model.options.n_lanes, sequence_id)
        if tokens:
            check_tokens(tokens, model.plan.n_vocab)
        prefix = model.prefixes.get(sequence_id)
        n_saved = prefix.length if prefix else 0
        if len(tokens) > n_saved:
            raise InvalidArgument(
                f"restore prefix: {len(tokens)} tokens wanted, sequence {sequence_id} has {n_saved}"
            )
        if prefix is None:
            model.pool.truncate(session.cells, 0)
        else:
            model.pool.share(prefix, len(tokens), session.cells)
        session.adopt(tokens)


def drop_prefix(session: Session, sequence_id: int) -> None:
    """Forget a saved prefix; unknown ids are fine."""
    model = session.model
    with model.locked(session):
        _check_id(model.options.n_lanes, sequence_id)
        prefix = model.prefixes.pop(sequence_id, None)
        if prefix is not None:
            model.pool.drop(prefix)


def _check_id(n_lanes: int, sequence_id: int) -> None:
    if not 2 * n_lanes <= sequence_id < MAX_SEQUENCE_ID:
        raise InvalidArgument(
            f"prefix: id {sequence_id} is outside {2 * n_lanes}..{MAX_SEQUENCE_ID - 1}"
        )
