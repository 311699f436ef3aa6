"""Guards calls on handles of another runtime: forwarded as made, errors and frees included.

The other runtime is `provider.py`. What it opens is in `test_fallback_open.py`, both at once in
`test_fallback_mixed.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.errors import Status
from skippy_abi import client, fallback_front, table
from skippy_abi.table import Symbol

if TYPE_CHECKING:
    # Left to pytest_plugins at run time, as for every module of fixtures.
    from tests.abi.provider import Provider


pytest_plugins = ["tests.abi.provider"]
ABI = table.load()
SYMBOLS = {symbol.name: symbol for symbol in ABI.served}
FORWARDED = [s.name for s in fallback_front.forwarded(ABI)]
OPENS = [name for name in FORWARDED if name.startswith("skippy_model_open")]
BATCHES = ["skippy_decode_batch_sampled", "skippy_decode_step_frame_batch_sampled"]
FREES = ["skippy_model_free", "skippy_session_free"]
ON_HANDLES = [
    name for name in FORWARDED
    if name not in (*OPENS, *BATCHES, *FREES, "skippy_parse_chat_response_json")
]


def handle_of(foreign: Any, c_type: str) -> Any:
    return foreign.handle if "session" in c_type else foreign.model.handle


def arguments(foreign: Any, symbol: Symbol, out: Any, out_error: Any) -> dict[str, Any]:
    """Distinct numbers in every place; pointers lead nowhere, so that whoever follows one falls."""
    made: dict[str, Any] = {}
    for i, param in enumerate(symbol.params):
        plain = param.c_type.removeprefix("const ")
        if plain in ("struct skippy_model *", "struct skippy_session *"):
            made[param.name] = handle_of(foreign, plain)
        elif param.name == "out_error":
            made[param.name] = out_error
        elif param.name == "out_session":
            made[param.name] = out
        elif param.c_type.endswith("*"):
            made[param.name] = foreign.host.ffi.cast(param.c_type, 0x1000 + 16 * i)
        else:
            made[param.name] = i % 2 if param.c_type == "bool" else 1000 + i
    return made


@pytest.mark.parametrize("name", ON_HANDLES)
def test_a_call_on_a_foreign_handle_arrives_as_it_was_made(
    foreign: Any, other: Provider, name: str
) -> None:
    host, symbol = foreign.host, SYMBOLS[name]
    other.reset()
    out = host.ffi.new("struct skippy_session **")
    out_error = host.ffi.new("struct skippy_error **", host.ffi.cast("void *", 0x77))
    made = arguments(foreign, symbol, out, out_error)
    result = host.symbol(name)(*made.values())
    assert other.calls(name) == 1
    assert other.arguments(name) == other.as_kept(made)
    if symbol.is_status:
        assert result == Status.OK
    else:
        assert int(host.ffi.cast("intptr_t", result)) == other.value_of(name)
    # Not even cleared: the other runtime alone answers.
    assert out_error[0] == host.ffi.cast("void *", 0x77)
    if out[0] != host.ffi.NULL:
        assert host.raw("skippy_session_free", out[0]) == (Status.OK, None)


def test_all_calls_of_the_table_are_forwarded() -> None:
    assert len(ON_HANDLES) == 44
    assert len(OPENS) == 4
    with_handles = {
        name for name, symbol in SYMBOLS.items() for p in symbol.params
        if "skippy_model *" in p.c_type or "skippy_session *" in p.c_type
    }
    assert with_handles <= set(FORWARDED)


@pytest.mark.parametrize(
    "name", [name for name in ON_HANDLES if SYMBOLS[name].is_status]
)
def test_its_errors_come_through_and_go_back_to_it(
    foreign: Any, other: Provider, name: str
) -> None:
    host = foreign.host
    out, out_error = host.ffi.new("struct skippy_session **"), host.ffi.new(
        "struct skippy_error **"
    )
    other.answer(Status.MODEL_ERROR)
    made = arguments(foreign, SYMBOLS[name], out, out_error)
    assert host.symbol(name)(*made.values()) == Status.MODEL_ERROR
    error = out_error[0]
    assert other.errors == 1
    assert error.status == Status.MODEL_ERROR
    assert host.ffi.string(error.message) == b"the other runtime says no"
    host.symbol("skippy_error_free")(error)
    assert other.errors == 0
    # A second free is nobody's.
    host.symbol("skippy_error_free")(error)
    assert other.errors == 0


def test_errors_of_ours_are_freed_by_us(foreign: Any, other: Provider) -> None:
    status, message = foreign.host.raw("skippy_session_reset", foreign.host.ffi.NULL)
    assert status == Status.INVALID_ARGUMENT
    assert "NULL" in (message or "")
    assert other.errors == 0


def test_a_status_outside_the_enum_does_not_reach_the_host(foreign: Any, other: Provider) -> None:
    other.answer(99)
    assert foreign.host.raw("skippy_session_reset", foreign.handle)[0] == Status.ERROR


def test_a_freed_handle_is_nobodys(
    runtime: client.Host, other: Provider, foreign_path: Path
) -> None:
    model = client.OpenModel(runtime, foreign_path)
    session = model.session()
    for name, handle in zip(reversed(FREES), (session.handle, model.handle), strict=True):
        assert runtime.raw(name, handle) == (Status.OK, None)
        status, message = runtime.raw(name, handle)
        assert (status, "not live" in (message or "")) == (Status.INVALID_ARGUMENT, True)
        assert other.calls(name) == 1
    assert session.position == -1
    assert other.calls("skippy_session_position") == 0


def test_a_free_that_it_refuses_leaves_the_handle(foreign: Any, other: Provider) -> None:
    other.answer(Status.RUNTIME_ERROR)
    for name, handle in zip(FREES, (foreign.model.handle, foreign.handle), strict=True):
        status, message = foreign.host.raw(name, handle)
        assert (status, message) == (Status.RUNTIME_ERROR, "the other runtime says no")
    assert foreign.position == other.value_of("skippy_session_position")
    assert other.errors == 0


def test_sessions_die_with_their_model(
    runtime: client.Host, other: Provider, foreign_path: Path
) -> None:
    kept = client.OpenModel(runtime, foreign_path)
    kept_session = kept.session()
    model = client.OpenModel(runtime, foreign_path)
    session = model.session()
    model.free()
    assert runtime.raw("skippy_session_free", session.handle)[0] == Status.INVALID_ARGUMENT
    assert other.calls("skippy_session_free") == 0
    kept_session.free()
    kept.free()
    assert other.calls("skippy_session_free") == 1


def test_pointers_that_it_never_gave_out_are_refused(foreign: Any, other: Provider) -> None:
    ffi = foreign.host.ffi
    heap = ffi.new("char[]", 64)
    strange = [
        8, int(ffi.cast("uintptr_t", heap)), int(ffi.cast("uintptr_t", foreign.handle)) + 1,
        int(ffi.cast("uintptr_t", foreign.model.handle)), 0xFFFF_8000_0000_0000,
    ]
    other.reset()
    for number in strange:
        session = ffi.cast("struct skippy_session *", number)
        assert foreign.host.raw("skippy_session_reset", session)[0] == Status.INVALID_ARGUMENT
        assert foreign.host.raw("skippy_session_free", session)[0] == Status.INVALID_ARGUMENT
    model = ffi.cast("struct skippy_model *", foreign.handle)
    assert foreign.host.raw("skippy_model_free", model)[0] == Status.INVALID_ARGUMENT
    foreign.host.symbol("skippy_error_free")(ffi.cast("struct skippy_error *", heap))
    assert [other.calls(name) for name in (*FREES, "skippy_session_reset")] == [0, 0, 0]
