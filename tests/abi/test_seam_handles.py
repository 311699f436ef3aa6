"""Guards every handle parameter of every export against every kind of pointer that is no handle."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi import client
from tests.abi.seam import HANDLES, OUTCOMES, SYMBOLS, Seam, is_handle, seam

WITH_HANDLE = [
    (name, p.name) for name, symbol in SYMBOLS.items() for p in symbol.params
    if is_handle(p.c_type)
]
NEUTRAL = {"skippy_session_position": -1, "skippy_session_batch_size": 0}


@pytest.fixture(scope="module")
def calls(
    runtime: client.Host, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seam]:
    with seam(runtime, tiny_path, tmp_path_factory.mktemp("out")) as made:
        yield made


def no_handles(calls: Seam, kind: str) -> dict[str, int]:
    """Numbers that are no live handle of that kind."""
    live = int(calls.ffi.cast("uintptr_t", calls.handles[kind]))
    other = next(v for k, v in calls.handles.items() if k != kind)
    gone = calls.model.session()
    gone.free()
    heap = calls.keep(calls.ffi.new("char[]", 64))
    return {
        "small": 8, "misaligned": live + 1, "next page": live + 4096,
        "other kind": int(calls.ffi.cast("uintptr_t", other)),
        "freed": int(calls.ffi.cast("uintptr_t", gone.handle)),
        "heap": int(calls.ffi.cast("uintptr_t", heap)), "kernel": 0xFFFF_8000_0000_0000,
        "all ones": 2**64 - 1,
    }


def test_the_good_call_of_every_export_is_good(calls: Seam) -> None:
    for name, symbol in SYMBOLS.items():
        if name.endswith("_free"):
            continue
        calls.fresh()
        result, message = calls.run(symbol, calls.good(symbol))
        if symbol.is_status:
            assert result == OUTCOMES.get(name, Status.OK), (name, message)
    assert len(SYMBOLS) == 69


@pytest.mark.parametrize(("name", "param"), WITH_HANDLE)
def test_what_is_no_handle_is_refused(calls: Seam, name: str, param: str) -> None:
    calls.fresh()
    symbol = SYMBOLS[name]
    c_type = next(p.c_type for p in symbol.params if p.name == param)
    before = calls.state()
    for what, number in no_handles(calls, HANDLES[c_type.removeprefix("const ")]).items():
        args = {**calls.good(symbol), param: calls.ffi.cast(c_type.replace("const ", ""), number)}
        result, message = calls.run(symbol, args)
        if not symbol.is_status:
            assert result in (NEUTRAL.get(name), calls.ffi.NULL, None), (what, result)
            continue
        assert result == Status.INVALID_ARGUMENT, what
        if not symbol.leaves_out_error:
            assert param in (message or ""), (what, message)
    assert calls.state() == before


@pytest.mark.parametrize(("name", "param"), WITH_HANDLE)
def test_null_is_refused_and_freed_without_a_word(calls: Seam, name: str, param: str) -> None:
    calls.fresh()
    symbol = SYMBOLS[name]
    result, message = calls.run(symbol, {**calls.good(symbol), param: calls.ffi.NULL})
    if name.endswith("_free"):
        assert result in (None, Status.OK)
    elif symbol.is_status:
        assert result == Status.INVALID_ARGUMENT
        assert symbol.leaves_out_error or "NULL" in (message or "")
    else:
        assert result in (NEUTRAL.get(name), calls.ffi.NULL)


@pytest.mark.parametrize("number", [0, 8, 0xFFFF_8000_0000_0000])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    "name", ["skippy_decode_batch_sampled", "skippy_decode_step_frame_batch_sampled"]
)
def test_one_bad_session_of_a_batch_stops_all(
    calls: Seam, name: str, place: int, number: int
) -> None:
    calls.fresh()
    others = [calls.model.session() for _ in range(2)]
    sessions = [calls.session.handle, others[0].handle, others[1].handle]
    sessions[place] = calls.ffi.cast("struct skippy_session *", number)
    args: dict[str, Any] = {
        **calls.good(SYMBOLS[name]), "request_count": 3,
        "sessions": calls.keep(calls.ffi.new("struct skippy_session *[]", sessions)),
    }
    status, message = calls.run(SYMBOLS[name], args)
    assert (status, f"sessions[{place}]" in (message or "")) == (Status.INVALID_ARGUMENT, True)
    assert [s.position for s in others] == [0, 0]
    assert calls.session.position == 8
    for session in others:
        session.free()


def test_a_freed_handle_stays_dead_when_the_lane_lives_on(calls: Seam) -> None:
    first = calls.model.session()
    first.free()
    second = calls.model.session()
    assert first.handle != second.handle
    assert first.position == -1
    status, _ = calls.host.raw("skippy_session_free", first.handle)
    assert status == Status.INVALID_ARGUMENT
    assert second.position == 0
    second.free()


def test_sessions_die_with_their_model(calls: Seam) -> None:
    model = client.OpenModel(calls.host, calls.path, lane_count=2, ctx_size=32)
    sessions = [model.session(), model.session()]
    model.free()
    assert [s.position for s in sessions] == [-1, -1]
    for session in sessions:
        status, _ = calls.host.raw("skippy_session_free", session.handle)
        assert status == Status.INVALID_ARGUMENT
    assert calls.host.raw("skippy_model_free", model.handle)[0] == Status.INVALID_ARGUMENT
