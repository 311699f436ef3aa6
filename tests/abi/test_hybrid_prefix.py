"""Guards resident prefixes of the hybrid over the C ABI: the state goes with the cells."""

from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import Host, OpenModel, OpenSession
from tests.abi.hybrid import Judge, export, opened, page, recurrent, text
from tests.abi.steps import (
    call,
    greedy,
    ids,
    load_page,
    raw,
    refused,
    restore,
    save,
    trim,
    verify,
)

PREFIX = text(20)
ID = 8


def created_from(model: OpenModel, tokens: list[int], sequence_id: int = ID) -> Any:
    """Status, message and session of create-from."""
    out = model.host.ffi.new("struct skippy_session **")
    given = model.host.ffi.new("int32_t[]", tokens)
    outcome = model.host.raw(
        "skippy_session_create_from_resident_prefix", model.handle, sequence_id, given,
        len(tokens), out,
    )
    return *outcome, OpenSession(model, out[0]) if outcome[0] == Status.OK else out[0]


@pytest.fixture
def saver(hybrid_model: OpenModel) -> OpenSession:
    """A session of 20 tokens, saved, that has gone on since."""
    session = hybrid_model.session()
    session.prefill(PREFIX)
    save(session, ID, 20)
    greedy(session, 5, 7)
    return session


def test_a_restored_prefix_goes_on_like_the_run(
    saver: OpenSession, hybrid_model: OpenModel, hybrid_judge: Judge
) -> None:
    fresh, used = hybrid_model.session(), saver
    restore(fresh, ID, PREFIX)
    restore(used, ID, PREFIX)
    _, _, made = created_from(hybrid_model, PREFIX)
    for session in (fresh, used, made):
        assert session.position == 20
        assert export(session) == hybrid_judge(PREFIX)[0]
    # Each goes its own way from cells that they share, and none sees another.
    for i, session in enumerate((fresh, used, made)):
        session.prefill(text(5, seed=i + 1))
    for i, session in enumerate((fresh, used, made)):
        wanted = hybrid_judge(PREFIX + text(5, seed=i + 1))
        assert (export(session), greedy(session, 9, 4)) == wanted
    restore(fresh, ID, PREFIX)
    assert (export(fresh), greedy(fresh, 9, 4)) == hybrid_judge(PREFIX)


def test_prefixes_outlive_reset_and_free(
    saver: OpenSession, hybrid_model: OpenModel, hybrid_judge: Judge
) -> None:
    saver.reset()
    saver.prefill(text(9, seed=4))
    saver.free()
    status, message, made = created_from(hybrid_model, PREFIX)
    assert status == Status.OK, message
    assert (export(made), greedy(made, 9, 4)) == hybrid_judge(PREFIX)


@pytest.mark.parametrize("n", [1, 19])
def test_a_shorter_form_does_not_exist(
    saver: OpenSession, hybrid_model: OpenModel, hybrid_judge: Judge, n: int
) -> None:
    """Refused, and the session is as it was: the host prefills it then."""
    session = hybrid_model.session()
    session.prefill(text(4, seed=2))
    refused(raw(session, "session_restore_prefix", ID, ids(session, PREFIX), n),
            Status.UNSUPPORTED, f"{n} of 20")
    assert (session.position, export(session), greedy(session, 9, 4)) == (
        4, *hybrid_judge(text(4, seed=2)))
    status, message, made = created_from(hybrid_model, PREFIX[:n])
    assert (status, made) == (Status.UNSUPPORTED, hybrid_model.host.ffi.NULL), message
    # The lane was given back: three sessions fit.
    hybrid_model.session()
    # As for saving: the state of n tokens is gone.
    before = export(saver)
    refused(raw(saver, "session_save_prefix", ID + 1, n), Status.UNSUPPORTED, "27 tokens", f"{n}")
    refused(raw(saver, "session_save_prefix", ID + 1, 28), Status.INVALID_ARGUMENT)
    assert export(saver) == before
    # What the id held stays.
    restore(session, ID, PREFIX)
    assert export(session) == hybrid_judge(PREFIX)[0]


def test_longer_than_saved_is_refused(saver: OpenSession) -> None:
    before = export(saver)
    longer = [*PREFIX, 1]
    refused(raw(saver, "session_restore_prefix", ID, ids(saver, longer), 21),
            Status.INVALID_ARGUMENT, "21", "20")
    refused(raw(saver, "session_restore_prefix", ID + 5, ids(saver, [1]), 1),
            Status.INVALID_ARGUMENT)
    assert (saver.position, export(saver)) == (27, before)


def test_saving_again_replaces_cells_and_state(saver: OpenSession, hybrid_judge: Judge) -> None:
    saver.reset()
    saver.prefill(text(6, seed=3))
    save(saver, ID, 6)
    saver.prefill([1, 2])
    refused(raw(saver, "session_restore_prefix", ID, ids(saver, PREFIX), 20),
            Status.INVALID_ARGUMENT)
    restore(saver, ID, text(6, seed=3))
    assert (export(saver), greedy(saver, 9, 4)) == hybrid_judge(text(6, seed=3))


@pytest.mark.parametrize("how", ["restore", "save"])
def test_nothing_saved_and_nothing_restored(
    saver: OpenSession, hybrid_judge: Judge, how: str
) -> None:
    if how == "save":
        save(saver, ID, 0)
        refused(raw(saver, "session_restore_prefix", ID, ids(saver, [1]), 1),
                Status.INVALID_ARGUMENT)
    restore(saver, ID, [])
    assert (saver.position, export(saver), recurrent(saver)) == (0, b"", b"")
    saver.prefill(text(3))
    assert (export(saver), greedy(saver, 9, 4)) == hybrid_judge(text(3))


def test_a_dropped_prefix_is_gone_and_gives_its_cells_back(
    runtime: Host, hybrids: Path, hybrid_judge: Judge
) -> None:
    model = opened(runtime, hybrids, ctx=32)
    session = model.session()
    session.prefill(PREFIX)
    save(session, ID, 20)
    session.reset()
    refused(raw(session, "prefill_chunk", ids(session, PREFIX), 20, *[runtime.ffi.NULL, 0] * 2,
                runtime.ffi.NULL), Status.RUNTIME_ERROR, "20 cells used")
    call(session, "session_drop_sequence", ID)
    call(session, "session_drop_sequence", ID)
    session.prefill(PREFIX)
    assert (export(session), greedy(session, 9, 4)) == hybrid_judge(PREFIX)
    refused(raw(session, "session_restore_prefix", ID, ids(session, PREFIX), 20),
            Status.INVALID_ARGUMENT)
    model.free()


def test_a_prefix_saved_inside_a_window_has_its_state(
    hybrid_model: OpenModel, hybrid_judge: Judge
) -> None:
    session = hybrid_model.session()
    session.prefill(PREFIX[:15])
    verify(session, PREFIX[15:])
    save(session, ID, 20)
    trim(session, 17)
    save(session, ID + 1, 17)
    session.prefill([3, 4])
    for sequence_id, n in ((ID, 20), (ID + 1, 17)):
        restore(session, sequence_id, PREFIX[:n])
        assert (export(session), greedy(session, 9, 4)) == hybrid_judge(PREFIX[:n])


def test_a_session_of_parts_that_do_not_match_is_not_saved(
    saver: OpenSession, hybrid_model: OpenModel
) -> None:
    other = hybrid_model.session()
    other.prefill(text(27, seed=5))
    assert load_page(other, *page(saver, 0, 27))[0] == Status.OK
    refused(raw(other, "session_save_prefix", ID + 1, 27), Status.RUNTIME_ERROR, "KV cells")
    save(other, ID + 1, 0)


def test_a_window_does_not_outlive_a_restore(saver: OpenSession) -> None:
    verify(saver, [1, 2, 3])
    restore(saver, ID, PREFIX)
    refused(raw(saver, "trim_session", 10), Status.RUNTIME_ERROR, "checkpoint")
    assert saver.position == 20


def test_penalties_read_the_restored_tokens(
    saver: OpenSession, hybrid_model: OpenModel, runtime: Host
) -> None:
    sampling = runtime.sampling(seed=3, repeat_penalty=1.8, penalty_last_n=64)
    straight, restored = hybrid_model.session(), hybrid_model.session()
    straight.prefill(PREFIX)
    restore(restored, ID, PREFIX)
    said = []
    for session in (straight, restored):
        token, found = 9, []
        for _ in range(8):
            token = session.decode(token, sampling)
            found.append(token)
        said.append(found)
    assert said[0] == said[1]
