"""Guards the fall-through: what another runtime opens is answered by it, all else by us.

The other runtime is `provider.py`. A process loads one fallback for its life, so whatever must fail
to load runs in a child; `test_fallback_load.py` has those.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi import client, fallback_front, table
from skippy_abi.table import Symbol
from tests import tiny, tiny_hybrid
from tests.abi.provider import Provider, build
from tests.abi.steps import greedy

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
FOREIGN_METADATA = b'{"grammar":"","chat_format":1}'


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("other") / "libother.so")


@pytest.fixture
def other(
    built: Path, runtime: client.Host, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Provider:
    """The other runtime as the fallback, with nothing counted yet."""
    monkeypatch.setenv("MESH_SPECIALIZE_FALLBACK", str(built))
    provider = Provider(built, ABI)
    provider.reset()
    return provider


@pytest.fixture
def foreign_path(tmp_path: Path) -> Path:
    """A readable model that is not served."""
    return tiny.write(tmp_path / "foreign.gguf", seed=77)


@pytest.fixture
def foreign(runtime: client.Host, other: Provider, foreign_path: Path) -> Iterator[Any]:
    """A model and a session of the other runtime."""
    model = client.OpenModel(runtime, foreign_path)
    session = model.session()
    yield session
    other.answer(0)
    runtime.raw("skippy_session_free", session.handle)
    runtime.raw("skippy_model_free", model.handle)


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


def numbers(host: client.Host, made: dict[str, Any]) -> dict[str, int]:
    return {
        name: value if isinstance(value, int) else int(host.ffi.cast("uintptr_t", value))
        for name, value in made.items()
    }


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
    assert other.arguments(name) == numbers(host, made)
    if symbol.is_status:
        assert result == Status.OK
    else:
        assert int(host.ffi.cast("intptr_t", result)) == other.value_of(name)
    # Not even cleared: the other runtime alone answers.
    assert out_error[0] == host.ffi.cast("void *", 0x77)
    if out[0] != host.ffi.NULL:
        assert host.raw("skippy_session_free", out[0]) == (Status.OK, None)


def test_all_calls_of_the_table_are_forwarded() -> None:
    assert len(ON_HANDLES) == 46
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


@pytest.mark.parametrize("name", OPENS)
def test_every_open_forwards_its_arguments(
    runtime: client.Host, other: Provider, foreign_path: Path, name: str
) -> None:
    ffi, seen = runtime.ffi, []

    @ffi.callback("void(const struct skippy_runtime_event_v1 *, void *)")
    def callback(event: Any, user_data: Any) -> None:
        seen.append(event.kind)

    path = ffi.new("char[]", str(foreign_path).encode())
    reporter = ffi.new("struct skippy_runtime_event_reporter_v1 *", {
        "abi_version": 1, "callback": ffi.cast("skippy_runtime_event_callback_v1", callback),
        "struct_size": ffi.sizeof("struct skippy_runtime_event_reporter_v1"),
    })
    # Nothing of this is right for us, and none of it is ours to judge.
    device = ffi.new("char[]", b"CUDA7")
    config = ffi.new("struct skippy_runtime_config *", {
        "selected_backend_device": device, "cache_type_k": 999, "layer_start": 5,
    })
    values = {
        "path": path, "paths": ffi.new("char *[]", [path]), "path_count": 1, "config": config,
        "reporter": reporter, "out_model": ffi.new("struct skippy_model **"),
        "out_error": ffi.new("struct skippy_error **"),
    }
    given = {p.name: values[p.name] for p in SYMBOLS[name].params}
    assert runtime.symbol(name)(*given.values()) == Status.OK
    assert (other.calls(name), other.arguments(name)) == (1, numbers(runtime, given))
    # STARTED is the other runtime's to send.
    assert seen == []
    model = values["out_model"][0]
    assert runtime.raw("skippy_model_free", model) == (Status.OK, None)


def test_an_open_that_it_refuses_fails_with_its_error(
    runtime: client.Host, other: Provider, foreign_path: Path
) -> None:
    other.answer(Status.MODEL_ERROR)
    with pytest.raises(client.AbiError, match="the other runtime says no"):
        client.OpenModel(runtime, foreign_path)
    assert other.errors == 0


def broken_gguf(folder: Path, whole: bytes) -> Path:
    path = folder / "broken.gguf"
    path.write_bytes(b"GGUF\x09\0\0\0" + whole[8:])
    return path


def test_what_falls_through_and_what_does_not(
    runtime: client.Host, other: Provider, foreign_path: Path, tiny_path: Path, tmp_path: Path
) -> None:
    from reference.synthetic import make_hybrid

    del make_hybrid
