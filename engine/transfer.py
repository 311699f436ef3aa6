"""Owns what moves between a session and the outside: cells and recurrent state, in and out.

Every function takes the model's lock, checks the whole input before it changes anything, and
leaves the session as it was when it refuses. Formats are in `state_codec.py` and
`recurrent_codec.py`.
"""

from __future__ import annotations

from engine import recurrent_codec, state_codec
from engine.envelope import KIND_PAGE, KIND_SEQUENCE, Span, first_length, mark_of
from engine.errors import InvalidArgument, RuntimeFailure, Unsupported
from engine.session import Session
from engine.state_codec import PageDesc
from engine.trail import EMPTY

# Whole sequence: all cells, and the recurrent state if the model has one


def full_state_bytes(session: Session) -> int:
    """Size of the exported sequence, 0 for an empty one.

    RuntimeFailure when cells and recurrent state are not of the same tokens.
    """
    with session.model.locked(session):
        span = _whole(session)
        if not span.token_count:
            return 0
        cells = state_codec.span_bytes(session.model, span)
        return cells + (recurrent_codec.state_bytes(session.model) if session.state.exists else 0)


def export_full_state(session: Session) -> bytearray:
    """The whole sequence as bytes; RuntimeFailure as for their size."""
    model = session.model
    with model.locked(session):
        out = state_codec.encode(session, _whole(session), KIND_SEQUENCE)
        if session.state.exists:
            out += recurrent_codec.encode(model, session.state.snapshot())
        return out


def import_full_state(session: Session, data: bytearray) -> None:
    """Replace the sequence; position becomes max(old, imported). Empty bytes change nothing."""
    model = session.model
    with model.locked(session):
        if not data:
            return
        cut = first_length(data) if session.state.exists else len(data)
        cells = memoryview(data)[:cut]
        span = state_codec.check(model, cells, KIND_SEQUENCE, InvalidArgument)
        if (span, mark_of(cells)) != (Span(*model.plan.layer_range, 0, span.token_count), EMPTY):
            raise RuntimeFailure(
                f"state: covers layers {span.layer_start}..{span.layer_end} from token "
                f"{span.token_start}, the whole sequence is needed"
            )
        marks = state_codec.marks_in(cells, span)
        snapshot = None
        if session.state.exists:
            snapshot = recurrent_codec.decode(model, memoryview(data)[cut:])
            if (snapshot.n_tokens, snapshot.mark) != (span.token_count, marks[-1]):
                raise RuntimeFailure(
                    f"state: {span.token_count} cells, recurrent state of "
                    f"{snapshot.n_tokens} tokens, not of the same ones"
                )
        model.pool.replace(session.cells, 0, span.token_count)
        session.cells.marks = marks
        state_codec.store(session, span, cells)
        if snapshot is not None:
            session.state.restore(snapshot)
        _moved_to(session, span.token_count)


def _whole(session: Session) -> Span:
    """All cells; of a model with recurrent state those that its state is of, which are checked."""
    n_tokens = session.position if session.state.exists else session.cells.length
    session.state.check(session.cells, n_tokens)
    return Span(*session.model.plan.layer_range, 0, n_tokens)


# Recurrent state


def import_state(session: Session, data: bytearray) -> None:
    """As `import_recurrent`, and the position becomes max(old, imported); empty changes nothing."""
    with session.model.locked(session):
        if data:
            import_recurrent(session, data)
            _moved_to(session, session.state.n_tokens)


def recurrent_bytes(session: Session) -> int:
    """Size of the exported recurrent state; 0 for an empty one, or for a model without any."""
    with session.model.locked(session):
        if not session.state.exists or not session.state.n_tokens:
            return 0
        return recurrent_codec.state_bytes(session.model)


def export_recurrent(session: Session) -> bytearray:
    """The recurrent state as bytes."""
    with session.model.locked(session):
        return recurrent_codec.encode(session.model, session.state.snapshot())


def import_recurrent(session: Session, data: bytearray) -> None:
    """Take over a recurrent state; position and checkpoints stay as they are.

    A stage without attention layers has nothing in its cells, so there they come with it.

    Unsupported for a model without any. Nothing at all is refused by a model that has one: a
    caller that restores an absent state would skip a prefill that never happened. RuntimeFailure
    for the state of other tokens than those of the cells, where there are as many.
    """
    with session.model.locked(session):
        if not session.state.exists:
            if data:
                raise Unsupported(f"recurrent state: {len(data)} bytes for a model without any")
            return
        snapshot = recurrent_codec.decode(session.model, data)
        n_tokens, cells = snapshot.n_tokens, session.cells
        if not session.model.plan.kv.layers:
            session.model.pool.replace(cells, 0, n_tokens)
            cells.marks = [EMPTY] * (n_tokens - 1) + [snapshot.mark]
        if n_tokens <= cells.length and cells.mark(n_tokens) != snapshot.mark:
            raise RuntimeFailure(
                f"recurrent state: its {n_tokens} tokens are not those of the KV cells"
            )
        session.state.restore(snapshot)
        session.last_row = None


# KV pages


def describe_page(
    session: Session, layer_start: int, layer_end: int, token_start: int, token_count: int
) -> PageDesc:
    """Descriptor of a page over tokens that must all be present; RuntimeFailure otherwise.

    Unsupported for a stage that has no attention layers at all.
    """
    with session.model.locked(session):
        n_layers = session.model.plan.n_layers
        if not 0 <= layer_start < layer_end <= n_layers:
            raise RuntimeFailure(f"KV page: layers {layer_start}..{layer_end} of {n_layers}")
        span = Span(layer_start, layer_end, token_start, token_count)
        _check_layers(session, span)
        if token_count == 0 or token_start + token_count > session.cells.length:
            raise RuntimeFailure(
                f"KV page: {token_count} tokens from {token_start}, "
                f"{session.cells.length} are present"
            )
        return state_codec.describe(session.model, span)


def _check_layers(session: Session, span: Span) -> None:
    kv_layers = session.model.plan.kv.layers
    if not kv_layers:
        # Callers go on without pages when they read these words, and only then.
        raise Unsupported("KV page: runtime has no attention KV cache")
    if not any(span.layer_start <= layer < span.layer_end for layer in kv_layers):
        raise RuntimeFailure(
            f"KV page: layers {span.layer_start}..{span.layer_end} have no KV rows, only "
            f"{', '.join(map(str, kv_layers))} have"
        )


def export_page(session: Session, page: PageDesc) -> bytearray:
    """The bytes of a described page."""
    with session.model.locked(session):
        describe_page(
            session, page.layer_start, page.layer_end, page.token_start, page.token_count
        )
        span = Span(page.layer_start, page.layer_end, page.token_start, page.token_count)
        return state_codec.encode(session, span, KIND_PAGE)


def import_page(session: Session, page: PageDesc, data: bytearray) -> None:
    """Write a page's rows; position becomes max(old, end of the page).

    A page of other tokens than the session's ends what was behind it. RuntimeFailure for one that
    does not follow the session's tokens, or that would leave layers without rows.
    """
    model, cells = session.model, session.cells
    with model.locked(session):
        span = state_codec.check_page(model, page, data)
        start, end = span.token_start, span.token_start + span.token_count
        if start > cells.length:
            raise RuntimeFailure(
                f"KV page: starts at token {start}, the session holds {cells.length}"
            )
        if mark_of(data) != cells.mark(start):
            raise RuntimeFailure(
                f"KV page: the {start} tokens before it are not those of the session"
            )
        marks = state_codec.marks_in(data, span)
        are_there = cells.marks[start:end] == marks
        if not are_there and not state_codec.has_all_layers(model, span):
            raise RuntimeFailure(
                f"KV page: layers {span.layer_start}..{span.layer_end} only, and the session has "
                f"no other rows of tokens {start}..{end}"
            )
        model.pool.replace(cells, start, cells.length if are_there else end)
        cells.marks[start:end] = marks
        state_codec.store(session, span, data)
        _moved_to(session, end)


def _moved_to(session: Session, n_tokens: int) -> None:
    session.position = max(session.position, n_tokens)
    session.last_row = None
    session.checkpoints.clear()
