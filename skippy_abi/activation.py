"""Owns activation frames: the descriptor and payload that stages of a split model pass on.

A frame's payload is float32 rows in token order, [n_tokens, D], without sidebands. A whole model
takes and gives empty ones. Everything is checked, the room for the output included, before a
session moves.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import BufferTooSmall, InvalidArgument
from engine.session import Session
from skippy_abi import buffers
from skippy_abi.cffi_module import ffi, lib

SIZE = ffi.sizeof("size_t")
DESC = ffi.sizeof("struct skippy_activation_desc")
DESC_VERSION = 1
ELEMENT_BYTES = 4

Rows = npt.NDArray[np.float32]


class Frame:
    """The frame arguments of one call; `hidden` are the rows that came in, if the stage takes any.

    Raises InvalidArgument for an input that is not what the stage takes or a missing output, and
    BufferTooSmall, with the size reported, for a short one.
    """

    def __init__(
        self, session: Session, n_tokens: int, input_desc: Any, input_payload: Any,
        output_desc: Any, output_payload: Any, capacity: int, out_bytes: Any,
    ) -> None:
        self._plan = session.model.plan
        self._stage_index = session.model.options.stage_index
        self._n_tokens = n_tokens
        self._desc, self._payload, self._bytes = output_desc, output_payload, out_bytes
        self.hidden = self._read(input_desc, input_payload)
        buffers.check_out(output_desc, DESC, "output_desc")
        buffers.check_out(out_bytes, SIZE, "out_output_payload_bytes")
        self._check_room(capacity)

    def _read(self, input_desc: Any, input_payload: Any) -> Rows | None:
        given = buffers.read_struct(input_desc, "skippy_activation_desc", "input_desc")
        if not self._plan.takes_hidden:
            if given is not None and given.payload_bytes:
                raise InvalidArgument(
                    f"input_desc: {given.payload_bytes} payload bytes for a stage that begins "
                    "with token ids, 0 allowed"
                )
            return None
        if given is None:
            raise InvalidArgument("input_desc: NULL for a stage that takes activations")
        expected = {
            "version": DESC_VERSION,
            "dtype": lib.SKIPPY_ACTIVATION_DTYPE_F32,
            "layout": lib.SKIPPY_ACTIVATION_LAYOUT_TOKEN_MAJOR,
            "layer_end": self._plan.layer_range[0],
            "token_count": self._n_tokens,
            "sequence_count": 1 if self._n_tokens else 0,
            "payload_bytes": self._row_bytes(),
            "flags": 0,
        }
        for name, wanted in expected.items():
            found = int(ffi.cast("uint64_t", getattr(given, name)))
            if found != wanted:
                raise InvalidArgument(f"input_desc: {name} is {found}, expected {wanted}")
        raw = buffers.read_bytes(input_payload, self._row_bytes(), "input_payload")
        return np.frombuffer(raw, np.float32).reshape(self._n_tokens, self._plan.d_model)

    def _row_bytes(self) -> int:
        return self._n_tokens * self._plan.d_model * ELEMENT_BYTES

    def _check_room(self, capacity: int) -> None:
        if not self._plan.gives_hidden:
            return
        needed = self._row_bytes()
        if self._payload == ffi.NULL:
            raise InvalidArgument(f"output_payload: NULL for a stage that gives {needed} bytes")
        if capacity < needed:
            buffers.write_value(self._bytes, "size_t", needed, "out_output_payload_bytes")
            raise BufferTooSmall(f"output_payload: {needed} bytes needed, capacity {capacity}")
        buffers.check_out(self._payload, needed, "output_payload")

    def finish(self, hidden: Rows | None) -> None:
        """Describe and store what the stage gave, or the empty frame of one with output."""
        desc = ffi.new("struct skippy_activation_desc *")
        desc.version = DESC_VERSION
        desc.dtype = lib.SKIPPY_ACTIVATION_DTYPE_UNKNOWN
        desc.layout = lib.SKIPPY_ACTIVATION_LAYOUT_OPAQUE
        desc.producer_stage_index = self._stage_index
        desc.layer_start, desc.layer_end = self._plan.layer_range
        desc.token_count = self._n_tokens
        desc.sequence_count = 1 if self._n_tokens else 0
        if hidden is not None:
            desc.dtype = lib.SKIPPY_ACTIVATION_DTYPE_F32
            desc.layout = lib.SKIPPY_ACTIVATION_LAYOUT_TOKEN_MAJOR
            desc.payload_bytes = hidden.nbytes
            buffers.write_bytes(self._payload, hidden.tobytes(), "output_payload")
        buffers.write_struct(self._desc, desc, "output_desc")
        n_bytes = 0 if hidden is None else hidden.nbytes
        buffers.write_value(self._bytes, "size_t", n_bytes, "out_output_payload_bytes")
