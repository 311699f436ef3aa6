"""Guards resident prefixes over the C ABI: shared, written on, counted once, refused whole."""

from pathlib import Path

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel
from tests.abi.steps import (
    call,
    export,
    greedy,
    ids,
    made_from_prefix,
    raw,
    refused,
    restore,
    save,
    straight,
    trim,
)


@pytest.mark.parametrize("n_saved", [1, 15, 16, 17, 32, 40])
def test_a_restored_prefix_goes_on_like_the_session_that_saved_it(
    tiny_model: OpenModel, n_saved: int
) -> None:
    tokens = list(range(50, 90))
    session = tiny_model.session()
    session.prefill(tokens)
    save(session, 8, n_saved)
    # The saving session writes on: into the shared page when the length is no multiple of 16.
    greedy(session, 3, 8)
    trim(session, n_saved)
    session.prefill([200] * 20)
    other = tiny_model.session()
    for n in (n_saved, n_saved // 2, n_saved):
        restore(other, 8, tokens[:n])
        assert other.position == n
        assert (export(other), greedy(other, 9, 4)) == straight(tiny_model, tokens[:n])
    made = made_from_prefix(tiny_model, 8, tokens[:n_saved])
    assert (export(made), greedy(made, 9, 4)) == straight(tiny_model, tokens[:n_saved])
    for one in (session, other, made):
        one.free()


def test_prefixes_outlive_reset_and_free(tiny_model: OpenModel) -> None:
    tokens = list(range(20))
    session = tiny_model.session()
    session.prefill(tokens)
    save(session, 8, 20)
    session.reset()
    session.prefill([7] * 40)
    session.free()
    session = tiny_model.session()
    restore(session, 8, tokens)
    assert (export(session), greedy(session, 9, 4)) == straight(tiny_model, tokens)
    session.free()


@pytest.mark.parametrize("sequence_id", [-(2**31), -1, 0, 7, 1024, 2**31 - 1])
def test_reserved_ids_are_refused(tiny_model: OpenModel, sequence_id: int) -> None:
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    wanted = export(session)
    one = ids(session, [1])
    for outcome in (
        raw(session, "session_save_prefix", sequence_id, 1),
        raw(session, "session_restore_prefix", sequence_id, one, 1),
        raw(session, "session_drop_sequence", sequence_id),
    ):
        refused(outcome, Status.INVALID_ARGUMENT, f"id {sequence_id} ", "8..1023")
    with pytest.raises(AbiError, match=f"id {sequence_id} "):
        made_from_prefix(tiny_model, sequence_id, [1])
    assert (session.position, export(session)) == (3, wanted)
    session.free()


def test_refusals_touch_nothing_and_give_the_lane_back(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    save(session, 8, 2)
    state = export(session)
    refused(raw(session, "session_save_prefix", 8, 4), Status.INVALID_ARGUMENT, "4 tokens", "3")
    refused(raw(session, "session_save_prefix", 8, 2**64 - 1), Status.INVALID_ARGUMENT)
    for sequence_id, n in ((8, 3), (9, 1), (1023, 1)):
        outcome = raw(session, "session_restore_prefix", sequence_id, ids(session, [1] * n), n)
        refused(outcome, Status.INVALID_ARGUMENT, f"sequence {sequence_id} has")
        for _ in range(5):
            with pytest.raises(AbiError):
                made_from_prefix(tiny_model, sequence_id, [1] * n)
    assert (session.position, export(session)) == (3, state)
    others = [tiny_model.session() for _ in range(3)]
    with pytest.raises(AbiError, match="lanes"):
        made_from_prefix(tiny_model, 8, [1, 2])
    for one in (session, *others):
        one.free()


def test_nothing_saved_and_nothing_restored(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    save(session, 8, 3)
    save(session, 8, 0)
    refused(raw(session, "session_restore_prefix", 8, ids(session, [1]), 1),
            Status.INVALID_ARGUMENT, "has 0")
    for sequence_id in (8, 500):
        session.reset()
        session.prefill([1, 2, 3])
        null = session.host.ffi.NULL
        call(session, "session_restore_prefix", sequence_id, null, 0)
        assert (session.position, export(session)) == (0, b"")
    call(session, "session_drop_sequence", 8)
    call(session, "session_drop_sequence", 8)
    call(session, "session_drop_sequence", 777)
    session.free()


def test_a_restore_replaces_history_and_drops_signals(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    greedy(session, 4, 3)
    save(session, 8, 2)
    restore(session, 8, [1, 2])
    window = session.host.ffi.new("struct skippy_generation_signal_window *")
    refused(raw(session, "session_signal_window", 16, window), Status.INVALID_ARGUMENT, "0 signals")
    refused(raw(session, "trim_session", 3), Status.INVALID_ARGUMENT, "3 tokens", "position is 2")
    session.free()


def test_a_shared_cell_counts_once_even_behind_a_copied_page(
    runtime: Host, tiny_path: Path
) -> None:
    model = OpenModel(runtime, tiny_path, lane_count=2, ctx_size=32)
    session = model.session()
    tokens = list(range(20))
    session.prefill(tokens)
    save(session, 4, 20)
    save(session, 5, 5)
    session.prefill(range(12))
    assert session.position == 32
    with pytest.raises(AbiError, match="32 cells used, 1 more wanted, 32 in total"):
        session.prefill([1])
    session.reset()
    other = model.session()
    restore(session, 4, tokens)
    restore(other, 5, tokens[:5])
    session.prefill(range(6))
    other.prefill(range(6))
    with pytest.raises(AbiError, match="32 cells used"):
        other.prefill([1])
    call(session, "session_drop_sequence", 4)
    with pytest.raises(AbiError, match="32 cells used"):
        other.prefill([1])
    session.free()
    other.prefill(range(21))
    assert other.position == 32
    model.free()


def test_a_page_that_another_session_took_is_not_written(runtime: Host, tiny_path: Path) -> None:
    """A trimmed session forgets where its former pages were."""
    model = OpenModel(runtime, tiny_path, lane_count=2, ctx_size=128)
    a, b = model.session(), model.session()
    a.prefill(range(20))
    save(a, 4, 10)
    restore(b, 4, list(range(10)))
    trim(a, 16)
    b.prefill(range(30, 60))
    a.prefill(range(100, 110))
    for session, tokens in ((b, [*range(10), *range(30, 60)]),
                            (a, [*range(16), *range(100, 110)])):
        state = export(session)
        found = greedy(session, 9, 4)
        session.free()
        assert (state, found) == straight(model, tokens)
    model.free()
