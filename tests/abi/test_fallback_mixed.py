"""Guards models of ours and of another runtime in one process, in one batch, on many threads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.errors import Status
from skippy_abi import client, fallback_front, table
from tests.abi.steps import greedy

if TYPE_CHECKING:
    # Left to pytest_plugins at run time, as for every module of fixtures.
    from tests.abi.provider import Provider


pytest_plugins = ["tests.abi.provider"]
ABI = table.load()
SYMBOLS = {symbol.name: symbol for symbol in ABI.served}
FORWARDED = [s.name for s in fallback_front.forwarded(ABI)]
BATCHES = ["skippy_decode_batch_sampled", "skippy_decode_step_frame_batch_sampled"]
FREES = ["skippy_model_free", "skippy_session_free"]
FOREIGN_METADATA = b'{"grammar":"","chat_format":1}'


def batch(host: client.Host, name: str, handles: list[Any]) -> tuple[int, str | None, list[Any]]:
    """A batch call whose other arguments are small; outputs that must stay as they were."""
    ffi, n = host.ffi, len(handles)
    sessions = ffi.new("struct skippy_session *[]", handles)
    values: list[Any] = [sessions]
    for param in SYMBOLS[name].params[1:-1]:
        if param.name == "token_ids":
            values.append(ffi.new("int32_t[]", [5] * n))
        elif param.name.startswith("out_predicted"):
            values.append(ffi.new("int32_t[]", [-7] * n))
        else:
            values.append(ffi.NULL if param.c_type.endswith("*") else n)
    status, message = host.raw(name, *values)
    return status, message, values


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_goes_where_its_sessions_are(
    foreign: Any, other: Provider, tiny_model: client.OpenModel, name: str
) -> None:
    host, own = foreign.host, [tiny_model.session(), tiny_model.session()]
    theirs = [foreign.model.session() for _ in range(70)]
    other.reset()
    status, _, values = batch(host, name, [s.handle for s in theirs])
    assert (status, other.calls(name)) == (Status.OK, 1)
    seen = list(other.arguments(name).values())[:-1]
    names = [param.name for param in SYMBOLS[name].params]
    assert seen == list(other.as_kept(dict(zip(names, values, strict=False))).values())
    mixed = [own[0].handle, *(s.handle for s in theirs), own[1].handle]
    for handles in (mixed, mixed[1:], mixed[:-1], [theirs[0].handle, host.ffi.NULL]):
        status, message, _ = batch(host, name, handles)
        assert status == Status.INVALID_ARGUMENT
        assert "belongs to the fallback runtime" in (message or "")
    assert other.calls(name) == 1
    assert [s.position for s in own] == [0, 0]
    for session in theirs:
        session.free()


def test_our_models_are_answered_by_us_alone(
    foreign: Any, other: Provider, tiny_model: client.OpenModel
) -> None:
    other.reset()
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    with_fallback = greedy(session, 4, 8)
    session.reset()
    foreign.free()
    foreign.model.free()
    other.reset()
    session.prefill([1, 2, 3])
    assert greedy(session, 4, 8) == with_fallback
    _, metadata = tiny_model.template('[{"role":"user","content":"hi"}]')
    assert tiny_model.parse(b"yes", metadata, is_partial=False)
    assert sum(other.calls(name) for name in FORWARDED) == 0


def parse(host: client.Host, metadata: bytes) -> tuple[int, str | None]:
    ffi = host.ffi
    return host.raw(
        "skippy_parse_chat_response_json", ffi.new("char[]", b"hi"), ffi.new("char[]", metadata),
        True, ffi.new("char[]", 100), 100, ffi.new("size_t *"),
    )


def test_a_response_goes_where_its_metadata_came_from(
    foreign: Any, other: Provider, tiny_model: client.OpenModel
) -> None:
    host, name = foreign.host, "skippy_parse_chat_response_json"
    _, own = tiny_model.template('[{"role":"user","content":"hi"}]')
    assert parse(host, own.encode()) == (Status.OK, None)
    assert parse(host, b'{"response":{}}')[0] == Status.UNSUPPORTED
    assert other.calls(name) == 0
    for n_calls, metadata in enumerate((FOREIGN_METADATA, b"", b"[]", b'{"response":1}'), 1):
        assert parse(host, metadata) == (Status.OK, None)
        assert other.calls(name) == n_calls
    other.answer(Status.UNSUPPORTED)
    assert parse(host, FOREIGN_METADATA) == (Status.UNSUPPORTED, "the other runtime says no")
    other.answer(0)
    foreign.free()
    foreign.model.free()
    assert parse(host, FOREIGN_METADATA)[0] == Status.UNSUPPORTED
    assert other.calls(name) == 5


def test_many_threads_use_both_runtimes(
    foreign: Any, other: Provider, tiny_model: client.OpenModel, foreign_path: Path
) -> None:
    host, n_threads, n_rounds = foreign.host, 8, 30
    wrong: list[str] = []
    other.reset()

    def use() -> None:
        for _ in range(n_rounds):
            model = client.OpenModel(host, foreign_path)
            sessions = [model.session() for _ in range(3)]
            for session in sessions:
                if session.position != other.value_of("skippy_session_position"):
                    wrong.append("position")
                session.free()
                if session.position == other.value_of("skippy_session_position"):
                    wrong.append("stale")
            model.free()

    own = tiny_model.session()
    own.prefill([1, 2, 3])
    threads = [threading.Thread(target=use) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    found = greedy(own, 4, 8)
    for thread in threads:
        thread.join()
    own.reset()
    own.prefill([1, 2, 3])
    assert greedy(own, 4, 8) == found
    assert wrong == []
    total = n_threads * n_rounds
    assert [other.calls(name) for name in FREES] == [total, 3 * total]


def test_of_many_frees_of_one_handle_one_arrives(foreign: Any, other: Provider) -> None:
    n_threads, n_rounds = 8, 50
    barrier = threading.Barrier(n_threads)
    statuses: list[int] = []
    sessions = [foreign.model.session() for _ in range(n_rounds)]

    def free() -> None:
        for session in sessions:
            barrier.wait()
            statuses.append(foreign.host.raw("skippy_session_free", session.handle)[0])

    threads = [threading.Thread(target=free) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses.count(Status.OK) == n_rounds
    assert statuses.count(Status.INVALID_ARGUMENT) == n_rounds * (n_threads - 1)
    assert other.calls("skippy_session_free") == n_rounds
