"""Guards calls from changing threads: text needs no lock, freeing waits, nobody hangs."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel, OpenSession
from tests.abi.seam import live_handles
from tests.abi.steps import export, greedy, raw, refused, verify

WAIT_S = 30


def on_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start a fresh thread; its result or exception lands in the list."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function())
        except AbiError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def engine_model(model: OpenModel) -> Any:
    """The engine's own object behind the handle: the library shares this process's Python."""
    from engine.model import Model
    from skippy_abi import handles
    from skippy_abi.cffi_module import ffi

    number = int(model.host.ffi.cast("uintptr_t", model.handle))
    return handles.take(ffi.cast("struct skippy_model *", number), Model, "model")


def test_every_step_on_its_own_thread_equals_one_thread(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    wanted = greedy(session, 9, 10), export(session)
    session.reset()
    session.prefill([1, 2, 3])
    token, tokens = 9, []
    for _ in range(10):
        thread, found = on_thread(lambda fed=token: session.decode(fed))
        thread.join(WAIT_S)
        token = found[0]
        tokens.append(token)
    assert (tokens, export(session)) == wanted
    session.free()


def test_text_calls_do_not_wait_for_the_model(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    _, metadata = tiny_model.template('[{"role":"user","content":"hi"}]')
    text: dict[str, Callable[[], Any]] = {
        "tokenize": lambda: tiny_model.tokenize("the then"),
        "detokenize": lambda: tiny_model.detokenize([1, 2]),
        "eog": lambda: tiny_model.is_eog(3),
        "template": lambda: tiny_model.template('[{"role":"user","content":"ho"}]'),
        "parse": lambda: tiny_model.parse(b"fine", metadata, is_partial=False),
    }
    with engine_model(tiny_model).lock:
        decode, decoded = on_thread(lambda: session.decode(9))
        for name, function in text.items():
            thread, found = on_thread(function)
            thread.join(WAIT_S)
            assert found, f"{name} waits for the lock"
            assert not isinstance(found[0], AbiError), found
        decode.join(0.2)
        assert not decoded, "a decode did not take the lock"
    decode.join(WAIT_S)
    assert decoded[0] >= 0
    session.free()


def test_freeing_waits_for_the_step_that_runs(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    with engine_model(tiny_model).lock:
        step, stepped = on_thread(lambda: session.prefill_sampled([1, 2, 3]))
        step.join(0.1)
        free, freed = on_thread(session.free)
        free.join(0.1)
        assert not stepped
        assert not freed
    step.join(WAIT_S)
    free.join(WAIT_S)
    assert freed == [None]
    # Whoever came first, the other one got an answer.
    assert isinstance(stepped[0], int) or stepped[0].status == Status.INVALID_ARGUMENT


def test_freeing_under_decoding_threads(runtime: Host, tiny_path: Path) -> None:
    before = live_handles()
    model = OpenModel(runtime, tiny_path, lane_count=4, ctx_size=256)
    sessions = [model.session() for _ in range(4)]
    started = threading.Barrier(5)

    def decode_until_gone(session: OpenSession) -> AbiError:
        own = OpenSession(model, session.handle)
        started.wait(WAIT_S)
        while True:
            try:
                own.decode(5)
                own.reset()
            except AbiError as error:
                return error

    threads = [on_thread(lambda s=session: decode_until_gone(s)) for session in sessions]
    started.wait(WAIT_S)
    for session in sessions[:2]:
        session.free()
    model.free()
    for thread, found in threads:
        thread.join(WAIT_S)
        assert found[0].status == Status.INVALID_ARGUMENT, found
    assert live_handles() == before


def test_two_frees_of_one_session_free_once(tiny_model: OpenModel) -> None:
    for _ in range(20):
        session = tiny_model.session()
        pairs = [on_thread(session.free) for _ in range(3)]
        for thread, _ in pairs:
            thread.join(WAIT_S)
        outcomes = [found[0] for _, found in pairs]
        assert outcomes.count(None) == 1
        assert all(o.status == Status.INVALID_ARGUMENT for o in outcomes if o is not None)


def test_creating_on_a_model_that_is_being_freed(runtime: Host, tiny_path: Path) -> None:
    model = OpenModel(runtime, tiny_path, lane_count=8, ctx_size=32)
    inner = engine_model(model)
    with inner.lock:
        free, _ = on_thread(model.free)
        # The handle is gone before the lock is asked for.
        for _ in range(1000):
            if runtime.raw("skippy_session_create", model.handle,
                           runtime.ffi.new("struct skippy_session **"))[0] != Status.OK:
                break
            free.join(0.01)
    free.join(WAIT_S)
    from engine.errors import InvalidArgument

    with pytest.raises(InvalidArgument, match="freed"):
        inner.create_session()


def test_external_decode_marks_belong_to_a_thread(tiny_model: OpenModel) -> None:
    a, b = tiny_model.session(), tiny_model.session()
    assert raw(a, "session_begin_external_decode")[0] == Status.OK
    refused(raw(b, "session_begin_external_decode"), Status.RUNTIME_ERROR)
    thread, found = on_thread(lambda: raw(b, "session_begin_external_decode"))
    thread.join(WAIT_S)
    assert found[0][0] == Status.OK
    assert raw(a, "session_end_external_decode")[0] == Status.OK
    a.free()
    b.free()


def test_models_do_not_wait_for_each_other(
    runtime: Host, tiny_model: OpenModel, tiny_path: Path
) -> None:
    other = OpenModel(runtime, tiny_path, ctx_size=32)
    session = other.session()
    with engine_model(tiny_model).lock:
        thread, found = on_thread(lambda: verify(session, [1, 2, 3]))
        thread.join(WAIT_S)
        assert len(found[0]) == 3
    other.free()


def test_a_closed_model_gives_its_memory_back_at_once(runtime: Host, tiny_path: Path) -> None:
    import gc
    import weakref

    gc.disable()
    try:
        model = OpenModel(runtime, tiny_path, lane_count=2, ctx_size=64)
        session = model.session()
        session.prefill([1, 2, 3])
        assert raw(session, "session_begin_external_decode")[0] == Status.OK
        watched = weakref.ref(engine_model(model).program)
        model.free()
        assert watched() is None
    finally:
        gc.enable()
