"""Guards the event reporter: what it must look like, which events come, on which thread, when."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import Host
from tests.abi.seam import UNMAPPED

STARTED, PROGRESS, DEVICE, FINISHED, FAILED = 1, 2, 3, 4, 5
OPEN_THREAD, WORKER = 1, 2


class Recorder:
    """A reporter whose callback copies every event."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.events: list[dict[str, Any]] = []
        self.user_data = host.ffi.new_handle(self)
        self._callback = host.ffi.callback(
            "void(const struct skippy_runtime_event_v1 *, void *)", self._take
        )
        self.struct = host.ffi.new("struct skippy_runtime_event_reporter_v1 *", {
            "abi_version": 1, "struct_size": 24, "callback": self._callback,
            "user_data": self.user_data,
        })

    def _take(self, event: Any, user_data: Any) -> None:
        assert user_data == self.user_data
        ffi = self.host.ffi
        names = [name for name, _ in ffi.typeof(event[0]).fields]
        copied = {name: getattr(event, name) for name in names}
        detail = event.detail_ptr
        copied["detail"] = None if detail == ffi.NULL else bytes(
            ffi.buffer(detail, event.detail_len)
        )
        copied["thread"] = threading.get_ident()
        self.events.append(copied)

    def kinds(self) -> list[int]:
        return [int(event["kind"]) for event in self.events]


@pytest.fixture
def recorder(runtime: Host) -> Iterator[Recorder]:
    return Recorder(runtime)


def open_model(
    recorder: Recorder, path: bytes | None, *, parts: bool = False, out: Any = None,
    reporter: Any = None, **config: Any,
) -> tuple[int, str | None, Any]:
    host, ffi = recorder.host, recorder.host.ffi
    out = ffi.new("struct skippy_model **") if out is None else out
    values = {"ctx_size": 32, "lane_count": 1, "include_output": True, **config}
    made = ffi.new("struct skippy_runtime_config *", values)
    text = ffi.NULL if path is None else ffi.new("char[]", path)
    given = recorder.struct if reporter is None else reporter
    if parts:
        status = host.raw("skippy_model_open_from_parts_with_events",
                          ffi.new("char *[]", [text]), 1, made, given, out)
    else:
        status = host.raw("skippy_model_open_with_events", text, made, given, out)
    return *status, out


@pytest.mark.parametrize("parts", [False, True])
def test_the_events_of_an_open_in_order(
    recorder: Recorder, tiny_path: Path, parts: bool
) -> None:
    status, message, out = open_model(recorder, bytes(tiny_path), parts=parts, stage_index=5)
    assert status == Status.OK, message
    events, kinds = recorder.events, recorder.kinds()
    assert kinds[0] == STARTED
    assert kinds[-2:] == [DEVICE, FINISHED]
    assert set(kinds[1:-2]) == {PROGRESS}
    assert [e["sequence"] for e in events] == list(range(1, len(events) + 1))
    assert events[0]["detail"] == bytes(tiny_path)
    assert events[-2]["detail"] == b"CPU"
    steps = [e["progress_current"] for e in events[1:-2]]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, 1000)
    number = int(recorder.host.ffi.cast("uintptr_t", out[0]))
    for event, kind in zip(events, kinds, strict=True):
        assert (event["abi_version"], event["struct_size"], event["stage_id"]) == (1, 112, 5)
        assert event["session_id"] == 0
        assert event["thread"] == threading.get_ident()
        assert int(event["category"]) == (2 if kind == DEVICE else 1)
        assert int(event["emitter"]) == (WORKER if kind == PROGRESS else OPEN_THREAD)
        assert event["model_id"] == (number if kind in (DEVICE, FINISHED) else 0)
        if kind == PROGRESS:
            assert (event["progress_total"], int(event["progress_unit"])) == (1000, 4)
            assert event["detail"] is None
    stamps = [e["timestamp_mono_ns"] for e in events]
    assert stamps == sorted(stamps)
    assert stamps[0] > 0
    before = len(events)
    recorder.host.call("skippy_model_free", out[0])
    assert len(events) == before


@pytest.mark.parametrize(("change", "status", "code", "word"), [
    ({"layer_start": 1}, Status.UNSUPPORTED, 4, "layer_start"),
    ({"selected_backend_device": b"CUDA7"}, Status.INVALID_ARGUMENT, 1, "CUDA7"),
    ({"lane_count": 1000}, Status.INVALID_ARGUMENT, 1, "lane_count"),
    ({"ctx_size": 2**31 - 1}, Status.RUNTIME_ERROR, 4, "GiB"),
])
def test_a_failure_is_one_event_and_the_return_value(
    recorder: Recorder, tiny_path: Path, change: dict[str, Any], status: Status, code: int,
    word: str,
) -> None:
    kept = {k: recorder.host.ffi.new("char[]", v) if isinstance(v, bytes) else v
            for k, v in change.items()}
    found, message, out = open_model(recorder, bytes(tiny_path), **kept)
    assert (found, out[0]) == (status, recorder.host.ffi.NULL)
    kinds = recorder.kinds()
    assert (kinds[0], kinds[-1], kinds.count(FAILED)) == (STARTED, FAILED, 1)
    assert FINISHED not in kinds
    last = recorder.events[-1]
    assert (last["status"], int(last["failure_code"]), last["model_id"]) == (status, code, 0)
    assert last["detail"].decode() == message
    assert word in (message or "")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model at all" * 10])
def test_files_that_are_no_models(recorder: Recorder, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    assert open_model(recorder, bytes(path))[0] == Status.MODEL_ERROR
    assert recorder.kinds() == [STARTED, FAILED]
    assert int(recorder.events[-1]["failure_code"]) == 3


def test_a_null_path_starts_without_detail_and_fails(recorder: Recorder) -> None:
    for parts in (False, True):
        recorder.events.clear()
        status, _, _ = open_model(recorder, None, parts=parts, layer_start=1)
        assert status == Status.INVALID_ARGUMENT
        assert recorder.kinds() == [STARTED, FAILED]
        assert recorder.events[0]["detail"] is None


def test_details_are_text_whatever_the_path_is(recorder: Recorder) -> None:
    status, _, _ = open_model(recorder, b"/no\xff\xfe/\xf0\x9f")
    assert status == Status.MODEL_ERROR
    for event in recorder.events:
        event["detail"].decode("utf-8")


def test_a_missing_place_for_the_model(recorder: Recorder, tiny_path: Path) -> None:
    null = recorder.host.ffi.NULL
    assert open_model(recorder, bytes(tiny_path), out=null)[0] == Status.INVALID_ARGUMENT
    assert recorder.kinds() == [STARTED, FAILED]


@pytest.mark.parametrize(("size", "version", "with_callback", "status"), [
    (23, 1, True, Status.INVALID_ARGUMENT), (0, 1, True, Status.INVALID_ARGUMENT),
    (23, 1, False, Status.INVALID_ARGUMENT), (23, 9, True, Status.INVALID_ARGUMENT),
    (24, 0, True, Status.UNSUPPORTED), (24, 2, True, Status.UNSUPPORTED),
    (24, 2**32 - 1, True, Status.UNSUPPORTED), (24, 9, False, Status.OK),
    (4096, 1, True, Status.OK), (2**32 - 1, 1, True, Status.OK),
])
def test_reporter_structs(
    recorder: Recorder, tiny_path: Path, size: int, version: int, with_callback: bool,
    status: Status,
) -> None:
    recorder.struct.struct_size, recorder.struct.abi_version = size, version
    if not with_callback:
        recorder.struct.callback = recorder.host.ffi.NULL
    found, message, out = open_model(recorder, bytes(tiny_path))
    assert found == status, message
    assert bool(recorder.events) == (with_callback and status == Status.OK)
    if found == Status.OK:
        recorder.host.call("skippy_model_free", out[0])


def test_bad_reporters_come_before_everything(recorder: Recorder) -> None:
    recorder.struct.struct_size = 8
    assert open_model(recorder, None, out=recorder.host.ffi.NULL)[0] == Status.INVALID_ARGUMENT
    assert recorder.events == []
    for number in UNMAPPED:
        wild = recorder.host.ffi.cast("struct skippy_runtime_event_reporter_v1 *", number)
        assert open_model(recorder, None, reporter=wild)[0] == Status.INVALID_ARGUMENT


def test_no_reporter_is_the_plain_call(recorder: Recorder, tiny_path: Path) -> None:
    status, _, out = open_model(recorder, bytes(tiny_path), reporter=recorder.host.ffi.NULL)
    assert status == Status.OK
    recorder.host.call("skippy_model_free", out[0])


def test_events_come_on_the_thread_that_opens(recorder: Recorder, tiny_path: Path) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(open_model(recorder, bytes(tiny_path))))
    thread.start()
    thread.join(30)
    assert found[0][0] == Status.OK
    assert {e["thread"] for e in recorder.events} == {thread.ident}
    recorder.host.call("skippy_model_free", found[0][2][0])


def test_no_lock_is_held_while_the_host_listens(
    recorder: Recorder, tiny_path: Path, tiny_model: Any
) -> None:
    """Another model's decode on another thread ends while the callback waits for it."""
    session = tiny_model.session()
    results: list[int] = []

    def listen(event: Any, user_data: Any) -> None:
        if not results:
            thread = threading.Thread(target=lambda: results.append(session.decode(5)))
            thread.start()
            thread.join(30)
            assert results

    callback = recorder.host.ffi.callback(
        "void(const struct skippy_runtime_event_v1 *, void *)", listen
    )
    recorder.struct.callback = callback
    status, _, out = open_model(recorder, bytes(tiny_path))
    assert status == Status.OK
    assert results
    recorder.host.call("skippy_model_free", out[0])
    session.free()
