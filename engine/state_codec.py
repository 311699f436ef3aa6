"""Owns the bytes of exported attention cells: the header of `envelope.py`, then K and V rows.

Behind the header come, for each layer with KV rows in the span, its K rows in token order, then
for each such layer its V rows; float32, no padding. Last the marks after each token, 64 bits each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.envelope import HEADER, KIND_PAGE, Bytes, Span, seal, unseal
from engine.errors import EngineError, RuntimeFailure
from engine.trail import MARK_BYTES

if TYPE_CHECKING:
    from engine.model import Model
    from engine.session import Session

GGML_TYPE_F32 = 0
ELEMENT_BYTES = 4


@dataclass(frozen=True)
class PageDesc:
    """The numbers of a KV page descriptor; field names are the ABI's."""

    layer_start: int
    layer_end: int
    token_start: int
    token_count: int
    layer_count: int
    k_type: int
    v_type: int
    k_row_bytes: int
    v_row_bytes: int
    v_element_bytes: int
    payload_bytes: int
    flags: int


def span_bytes(model: Model, span: Span) -> int:
    """Bytes of header, rows and marks of a span."""
    token_bytes = 2 * len(_layers(model, span)) * _row_bytes(model) + MARK_BYTES
    return HEADER.size + span.token_count * token_bytes


def describe(model: Model, span: Span) -> PageDesc:
    """The descriptor of a single page over `span`."""
    row_bytes = _row_bytes(model)
    return PageDesc(
        layer_start=span.layer_start, layer_end=span.layer_end,
        token_start=span.token_start, token_count=span.token_count,
        layer_count=len(_layers(model, span)), k_type=GGML_TYPE_F32, v_type=GGML_TYPE_F32,
        k_row_bytes=row_bytes, v_row_bytes=row_bytes, v_element_bytes=ELEMENT_BYTES,
        payload_bytes=span_bytes(model, span), flags=0,
    )


def encode(session: Session, span: Span, kind: int) -> bytearray:
    """Header, rows and marks of a span whose every token is present."""
    model = session.model
    out = bytearray(span_bytes(model, span))
    rows = _rows_view(out, model, span)
    cells = _cells_of(session, span)
    for index, layer in enumerate(_layers(model, span)):
        for which in range(2):
            rows[which, index] = model.program.read_rows(layer, which, cells)
    end = span.token_start + span.token_count
    _marks_view(out, span)[:] = session.cells.marks[span.token_start : end]
    seal(model, out, kind, span, _row_bytes(model), session.cells.mark(span.token_start))
    return out


def check(
    model: Model, data: Bytes, kind: int, too_many: type[EngineError] = RuntimeFailure
) -> Span:
    """The span of rows that are whole and of this model; RuntimeFailure naming what differs.

    More cells than the context holds is `too_many`.
    """
    span = unseal(model, data, kind, _row_bytes(model), too_many)
    if span_bytes(model, span) != len(data):
        raise RuntimeFailure(f"state: {len(data)} bytes for a span of {span_bytes(model, span)}")
    return span


def store(session: Session, span: Span, data: Bytes) -> None:
    """Write checked rows into the session's cells, which exist already."""
    rows = _rows_view(data, session.model, span)
    cells = _cells_of(session, span)
    for index, layer in enumerate(_layers(session.model, span)):
        for which in range(2):
            session.model.program.write_rows(layer, which, cells, rows[which, index])


def marks_in(data: Bytes, span: Span) -> list[int]:
    """The marks after each token of checked rows."""
    return [int(mark) for mark in _marks_view(data, span)]


def has_all_layers(model: Model, span: Span) -> bool:
    """Whether a span leaves out no layer with KV rows."""
    return len(_layers(model, span)) == len(model.plan.kv.layers)


def check_page(model: Model, page: PageDesc, data: Bytes) -> Span:
    """The span of a page whose descriptor and bytes agree; RuntimeFailure naming what differs."""
    span = check(model, data, KIND_PAGE)
    expected = describe(model, span)
    if page != expected:
        differing = [
            f"{name} {getattr(page, name)} (bytes say {getattr(expected, name)})"
            for name in PageDesc.__dataclass_fields__
            if getattr(page, name) != getattr(expected, name)
        ]
        raise RuntimeFailure(f"KV page: descriptor differs from its bytes: {', '.join(differing)}")
    return span


def _layers(model: Model, span: Span) -> list[int]:
    """The layers of a span that have KV rows."""
    return [layer for layer in model.plan.kv.layers if span.layer_start <= layer < span.layer_end]


def _row_bytes(model: Model) -> int:
    return model.plan.kv.n_heads * model.plan.kv.d_head * ELEMENT_BYTES


def _rows_view(data: Bytes, model: Model, span: Span) -> npt.NDArray[np.float32]:
    """The rows inside the bytes: float32 [2, layers, tokens, G, E]."""
    kv = model.plan.kv
    shape = (2, len(_layers(model, span)), span.token_count, kv.n_heads, kv.d_head)
    count = int(np.prod(shape))
    return np.frombuffer(data, np.float32, count, HEADER.size).reshape(shape)


def _marks_view(data: Bytes, span: Span) -> npt.NDArray[np.uint64]:
    """The marks inside the bytes: uint64 [tokens]."""
    offset = len(data) - MARK_BYTES * span.token_count
    return np.frombuffer(data, np.uint64, span.token_count, offset)


def _cells_of(session: Session, span: Span) -> npt.NDArray[np.int32]:
    return session.cells.cells()[span.token_start : span.token_start + span.token_count]
