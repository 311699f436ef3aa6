"""Owns the self-checking header in front of every exported state: pages, sequences, recurrent.

96 bytes, little endian: magic, version, kind, layer range, row bytes, token range, 32-byte model
identity, payload length, 64-bit digest of everything else, 64-bit mark of the tokens (`trail.py`):
those before the span, or for a recurrent state those that went into it. A reader checks every
field against the model and the digest against the rest before it changes anything. Bytes are
deterministic, so a host that stores equal blocks once does.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import EngineError, RuntimeFailure

if TYPE_CHECKING:
    from engine.model import Model

MAGIC = b"MSKVROWS"
VERSION = 1
KIND_SEQUENCE = 1
KIND_PAGE = 2
KIND_RECURRENT = 3
HEADER = struct.Struct("<8sHHiiIQQ32sQ8sQ")
DIGEST = slice(80, 88)
PAYLOAD_LENGTH = struct.Struct("<72xQ16x")
MARK = struct.Struct("<88xQ")

Bytes = bytearray | memoryview


@dataclass(frozen=True)
class Span:
    """Layers and tokens that some bytes cover."""

    layer_start: int
    layer_end: int
    token_start: int
    token_count: int


def seal(
    model: Model, out: bytearray, kind: int, span: Span, row_bytes: int, mark: int
) -> None:
    """Write the header of `out`, whose payload is in place behind it."""
    HEADER.pack_into(
        out, 0, MAGIC, VERSION, kind, span.layer_start, span.layer_end, row_bytes,
        span.token_start, span.token_count, bytes.fromhex(model.plan.weights_id),
        len(out) - HEADER.size, bytes(DIGEST.stop - DIGEST.start), mark,
    )
    out[DIGEST] = _digest(out)


def unseal(
    model: Model, data: Bytes, kind: int, row_bytes: int,
    too_many: type[EngineError] = RuntimeFailure,
) -> Span:
    """The span of bytes that are whole and of this model; RuntimeFailure naming what differs.

    More cells than the context holds is `too_many`.
    """
    if len(data) < HEADER.size:
        raise RuntimeFailure(f"state: {len(data)} bytes, the header alone has {HEADER.size}")
    (magic, version, found_kind, layer_start, layer_end, found_row_bytes, token_start, token_count,
     identity, payload_bytes, digest, _) = HEADER.unpack_from(data)
    expected = {
        "magic": (magic, MAGIC),
        "version": (version, VERSION),
        "kind": (found_kind, kind),
        "row bytes": (found_row_bytes, row_bytes),
        "model identity": (identity.hex(), model.plan.weights_id),
        "payload length": (payload_bytes, len(data) - HEADER.size),
    }
    for name, (found, wanted) in expected.items():
        if found != wanted:
            raise RuntimeFailure(f"state: {name} is {found!r}, expected {wanted!r}")
    n_layers = model.plan.n_layers
    if not 0 <= layer_start < layer_end <= n_layers:
        raise RuntimeFailure(f"state: layers {layer_start}..{layer_end} of {n_layers}")
    if token_count == 0:
        raise RuntimeFailure("state: 0 tokens, at least 1 needed")
    end, n_context = token_start + token_count, model.options.n_context
    if end > n_context:
        raise too_many(f"state: {end} cells, the context has {n_context}")
    if _digest(data) != digest:
        raise RuntimeFailure("state: the bytes do not match their digest")
    return Span(layer_start, layer_end, token_start, token_count)


def mark_of(data: Bytes) -> int:
    """The mark in the header of unsealed bytes."""
    return int(MARK.unpack_from(data)[0])


def first_length(data: Bytes) -> int:
    """Bytes of the first sealed part of some data, as its header claims, bounded by the data."""
    if len(data) < HEADER.size:
        return len(data)
    return min(len(data), HEADER.size + int(PAYLOAD_LENGTH.unpack_from(data)[0]))


def _digest(data: Bytes) -> bytes:
    """Over everything but the digest itself, so that no byte can change unnoticed."""
    view = memoryview(data)
    digest = hashlib.sha256(view[: DIGEST.start])
    digest.update(view[DIGEST.stop :])
    return digest.digest()[: DIGEST.stop - DIGEST.start]
