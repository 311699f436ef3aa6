"""Owns the bytes of an exported recurrent state: the header of `envelope.py`, then the arrays.

The arrays follow in the plan's order, float32, without padding. The header's span is all layers
and the tokens from 0 that went into the state; "row bytes" is the size of one sequence's arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.envelope import HEADER, KIND_RECURRENT, Bytes, Span, mark_of, seal, unseal
from engine.errors import RuntimeFailure
from engine.recurrent import Snapshot

if TYPE_CHECKING:
    from engine.model import Model

ELEMENT_BYTES = 4


def state_bytes(model: Model) -> int:
    """Bytes of header and arrays."""
    return HEADER.size + _array_bytes(model)


def encode(model: Model, snapshot: Snapshot) -> bytearray:
    """Header and arrays of a state that is not empty."""
    out = bytearray(state_bytes(model))
    at = HEADER.size
    for name in model.plan.states:
        raw = np.ascontiguousarray(snapshot.arrays[name], np.float32).tobytes()
        out[at : at + len(raw)] = raw
        at += len(raw)
    span = _span(model, snapshot.n_tokens)
    seal(model, out, KIND_RECURRENT, span, _array_bytes(model), snapshot.mark)
    return out


def decode(model: Model, data: Bytes) -> Snapshot:
    """The state in bytes that are whole and of this model; RuntimeFailure naming what differs."""
    span = unseal(model, data, KIND_RECURRENT, _array_bytes(model))
    if span != _span(model, span.token_count):
        raise RuntimeFailure(f"recurrent state: covers {span}, all layers from token 0 are needed")
    if len(data) != state_bytes(model):
        raise RuntimeFailure(f"recurrent state: {len(data)} bytes, {state_bytes(model)} needed")
    arrays, at = {}, HEADER.size
    for name, shape in model.plan.states.items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(data, np.float32, count, at).reshape(shape).copy()
        at += count * ELEMENT_BYTES
    return Snapshot(span.token_count, mark_of(data), arrays)


def _span(model: Model, n_tokens: int) -> Span:
    return Span(*model.plan.layer_range, 0, n_tokens)


def _array_bytes(model: Model) -> int:
    return ELEMENT_BYTES * sum(int(np.prod(shape)) for shape in model.plan.states.values())
