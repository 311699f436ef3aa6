"""Owns the event reporter of the open calls: what it must look like, and the order of its events.

STARTED, rising PROGRESS, BACKEND_DEVICE_SELECTED, then FINISHED or FAILED_HANDLED. The callback is
the host's own code: it is called with no lock held, on the opening thread, and never after the
call has returned.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from engine.errors import InvalidArgument, Status, Unsupported
from skippy_abi import buffers
from skippy_abi.boundary import answer_to
from skippy_abi.cffi_module import ffi, lib

EVENT_VERSION = 1
PROGRESS_STEPS = 1000

FAILURE_CODES = {
    Status.INVALID_ARGUMENT: lib.SKIPPY_RUNTIME_EVENT_FAILURE_INVALID_ARGUMENT,
    Status.IO_ERROR: lib.SKIPPY_RUNTIME_EVENT_FAILURE_IO_ERROR,
    Status.MODEL_ERROR: lib.SKIPPY_RUNTIME_EVENT_FAILURE_MODEL_ERROR,
    Status.RUNTIME_ERROR: lib.SKIPPY_RUNTIME_EVENT_FAILURE_RUNTIME_ERROR,
    Status.UNSUPPORTED: lib.SKIPPY_RUNTIME_EVENT_FAILURE_RUNTIME_ERROR,
}


class Reporter:
    """Sends the events of one open call; silent without a callback.

    Raises InvalidArgument for a struct that is too small and Unsupported for another version.
    """

    def __init__(self, pointer: Any, stage_index: int) -> None:
        self._stage_id = max(stage_index, 0)
        self._sequence = 0
        self._progress = -1
        self._model_id = 0
        self._held: Callable[[], None] | None = None
        self._callback: Any = ffi.NULL
        if pointer == ffi.NULL:
            return
        _, struct_size = buffers.read_array(pointer, 2, "uint32_t", "reporter")
        needed = ffi.sizeof("struct skippy_runtime_event_reporter_v1")
        if struct_size < needed:
            raise InvalidArgument(f"reporter: struct_size {struct_size} below {needed}")
        given = buffers.read_struct(pointer, "skippy_runtime_event_reporter_v1", "reporter")
        if given.callback != ffi.NULL and given.abi_version != EVENT_VERSION:
            raise Unsupported(
                f"reporter: version {given.abi_version}, only {EVENT_VERSION} is served"
            )
        self._callback, self._user_data = given.callback, given.user_data

    def started(self, path: bytes | None, *, is_held: bool = False) -> None:
        """The call has begun; `path` is the first part's path, when there is one.

        `is_held`: sent just before the next event, since another runtime may take the call over.
        """
        # Paths are bytes, details are text.
        shown = None if path is None else path.decode("utf-8", "replace").encode()
        kind = lib.SKIPPY_RUNTIME_EVENT_KIND_MODEL_OPEN_STARTED
        self._held = partial(self._send, kind, detail=shown)
        if not is_held:
            self._send_held()

    def hand_over(self) -> None:
        """Another runtime answers the call and sends all events of it."""
        self._callback = ffi.NULL

    def progress(self, fraction: float) -> None:
        """Loading has come that far; only rising steps are sent."""
        step = int(fraction * PROGRESS_STEPS)
        if step <= self._progress:
            return
        self._progress = step
        self._send(
            lib.SKIPPY_RUNTIME_EVENT_KIND_MODEL_OPEN_PROGRESS,
            emitter=lib.SKIPPY_RUNTIME_EVENT_EMITTER_WORKER_THREAD,
            progress_current=step,
            progress_total=PROGRESS_STEPS,
            progress_unit=lib.SKIPPY_RUNTIME_EVENT_PROGRESS_UNIT_STEPS,
        )

    def finished(self, model_id: int, device: str) -> None:
        """The model is open under this handle, on this device."""
        self._model_id = model_id
        self._send(
            lib.SKIPPY_RUNTIME_EVENT_KIND_BACKEND_DEVICE_SELECTED,
            category=lib.SKIPPY_RUNTIME_EVENT_CATEGORY_BACKEND,
            detail=device.encode(),
        )
        self._send(lib.SKIPPY_RUNTIME_EVENT_KIND_MODEL_OPEN_FINISHED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """An error on its way to the caller is told to the callback first."""
        if error is None:
            return
        status, message = answer_to(error)
        self._send(
            lib.SKIPPY_RUNTIME_EVENT_KIND_MODEL_OPEN_FAILED_HANDLED,
            status=int(status),
            failure_code=FAILURE_CODES.get(
                status, lib.SKIPPY_RUNTIME_EVENT_FAILURE_INTERNAL_ERROR
            ),
            detail=message.encode("utf-8", "replace"),
        )

    def _send_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held()

    def _send(self, kind: int, *, detail: bytes | None = None, **fields: int) -> None:
        if self._callback == ffi.NULL:
            return
        self._send_held()
        self._sequence += 1
        event = ffi.new("struct skippy_runtime_event_v1 *")
        event.abi_version = EVENT_VERSION
        event.struct_size = ffi.sizeof("struct skippy_runtime_event_v1")
        event.category = lib.SKIPPY_RUNTIME_EVENT_CATEGORY_MODEL_OPEN
        event.kind = kind
        event.emitter = lib.SKIPPY_RUNTIME_EVENT_EMITTER_OPEN_THREAD
        event.sequence = self._sequence
        event.timestamp_mono_ns = time.monotonic_ns()
        event.stage_id = self._stage_id
        event.model_id = self._model_id
        for name, value in fields.items():
            setattr(event, name, value)
        kept = ffi.new("char[]", detail or b"")
        if detail is not None:
            event.detail_ptr, event.detail_len = kept, len(detail)
        self._callback(event, self._user_data)
