"""Owns the bytes of exported attention state: a self-checking header, then K and V rows.

Layout, little endian: the 96-byte header of `HEADER` (magic, version, kind, layer range, token
range, row bytes, 32-byte model identity, payload length, 64-bit digest of all else), then for each
layer in order its K rows in token order, then for each layer its V rows, float32. A reader checks
every field against the model and the digest against the rest before it changes anything. Bytes
are deterministic, so a host that stores equal blocks once does.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError, RuntimeFailure

if TYPE_CHECKING:
    from engine.model import Model
    from engine.session import Session

MAGIC = b"MSKVROWS"
VERSION = 1
KIND_STATE = 1
KIND_PAGE = 2
HEADER = struct.Struct("<8sHHiiIQQ32sQ8s8x")
DIGEST = slice(80, 88)
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


@dataclass(frozen=True)
class Span:
    """Layers and tokens that some bytes cover."""

    layer_start: int
    layer_end: int
    token_start: int
    token_count: int


def span_bytes(model: Model, span: Span) -> int:
    """Bytes of header and rows of a span."""
    return HEADER.size + 2 * len(_layers(model, span)) * span.token_count * _row_bytes(model)


def describe(model: Model, span: Span) -> PageDesc:
    """The descriptor of a single page over `span`."""
    row_bytes = _row_bytes(model)
    return PageDesc(
        layer_start=span.layer_start, layer_end=span.layer_end,
        token_start=span.token_start, token_count=span.token_count, layer_count=len(_layers(model, span)),
        k_type=GGML_TYPE_F32, v_type=GGML_TYPE_F32, k_row_bytes=row_bytes, v_row_bytes=row_bytes,
        v_element_bytes=ELEMENT_BYTES, payload_bytes=span_bytes(model, span), flags=0,
    )


def encode(session: Session, span: Span, kind: int) -> bytearray:
    """Header and rows of a span whose every token is present."""
    model = session.model
    out = bytearray(span_bytes(model, span))
    rows = _rows_view(out, model, span)
    cells = _cells_of(session, span)
    for index, layer in enumerate(_layers(model, span)):
        for which in range(2):
            rows[which, index] = model.program.read_rows(layer, which, cells)
    HEADER.pack_into(
        out, 0, MAGIC, VERSION, kind, span.layer_start, span.layer_end, _row_bytes(model),
        span.token_start, span.token_count, bytes.fromhex(model.plan.weights_id),
        len(out) - HEADER.size, bytes(DIGEST.stop - DIGEST.start),
    )
    out[DIGEST] = _digest(out)
    return out


def check(
    model: Model, data: bytearray, kind: int, too_many: type[EngineError] = RuntimeFailure
) -> Span:
    """The span of bytes that are whole and of this model; RuntimeFailure naming what differs.

    More cells than the context holds is `too_many`.
    """
    if len(data) < HEADER.size:
        raise RuntimeFailure(f"state: {len(data)} bytes, the header alone has {HEADER.size}")
    (magic, version, found_kind, layer_start, layer_end, row_bytes, token_start, token_count,
     identity, payload_bytes, digest) = HEADER.unpack_from(data)
    span = Span(layer_start, layer_end, token_start, token_count)
    expected = {
        "magic": (magic, MAGIC),
        "version": (version, VERSION),
        "kind": (found_kind, kind),
        "row bytes": (row_bytes, _row_bytes(model)),
        "model identity": (identity.hex(), model.plan.weights_id),
        "payload length": (payload_bytes, len(data) - HEADER.size),
    }
    for name, (found, wanted) in expected.items():
        if found != wanted:
            raise RuntimeFailure(f"state: {name} is {found!r}, expected {wanted!r}")
    if not 0 <= layer_start < layer_end <= model.plan.n_layers:
        raise RuntimeFailure(
            f"state: layers {layer_start}..{layer_end} of {model.plan.n_layers}"
        )
    if token_count == 0:
        raise RuntimeFailure("state: 0 tokens, at least 1 needed")
    if token_start + token_count > model.options.n_context:
        raise too_many(
            f"state: {token_start + token_count} cells, the context has {model.options.n_context}"
        )
    if span_bytes(model, span) != len(data):
        raise RuntimeFailure(f"state: {len(data)} bytes for a span of {span_bytes(model, span)}")
    if _digest(data) != digest:
        raise RuntimeFailure("state: the bytes do not match their digest")
    return span


def store(session: Session, span: Span, data: bytearray) -> None:
    """Write checked rows into the session's cells, which exist already."""
    rows = _rows_view(data, session.model, span)
    cells = _cells_of(session, span)
    for index, layer in enumerate(_layers(session.model, span)):
        for which in range(2):
            session.model.program.write_rows(layer, which, cells, rows[which, index])


def check_page(model: Model, page: PageDesc, data: bytearray) -> Span:
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


def _digest(data: bytearray) -> bytes:
    """Over everything but the digest itself, so that no byte can change unnoticed."""
    view = memoryview(data)
    digest = hashlib.sha256(view[: DIGEST.start])
    digest.update(view[DIGEST.stop :])
    return digest.digest()[: DIGEST.stop - DIGEST.start]


def _rows_view(data: bytearray, model: Model, span: Span) -> npt.NDArray[np.float32]:
    """The rows inside the bytes: float32 [2, layers, tokens, G, E]."""
    kv = model.plan.kv
    shape = (2, len(_layers(model, span)), span.token_count, kv.n_heads, kv.d_head)
    return np.frombuffer(data, np.float32, offset=HEADER.size).reshape(shape)


def _cells_of(session: Session, span: Span) -> npt.NDArray[np.int32]:
    return session.cells.cells()[span.token_start : span.token_start + span.token_count]
