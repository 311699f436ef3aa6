"""Guards spans of the hybrid over the C ABI: verify k, keep j, as if the rest were unseen."""

from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import Host, OpenModel
from tests.abi.hybrid import Judge, export, opened, text
from tests.abi.steps import (
    call,
    greedy,
    raw,
    refused,
    save,
    trim,
    verify,
    verify_sampled,
    with_and_without_a_span,
)

STARTS = [0, 1, 3, 40]


def span(k: int) -> list[int]:
    return text(k, seed=3)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("function", [verify, verify_sampled])
def test_trim_to_every_j_is_the_straight_run(
    hybrid_model: OpenModel, hybrid_judge: Judge, function: Any, start: int
) -> None:
    session = hybrid_model.session()
    for k in range(1, 9):
        for j in range(k + 1):
            session.reset()
            if start:
                session.prefill(text(start))
            assert len(function(session, span(k))) == k
            assert session.position == start + k
            trim(session, start + j)
            found = session.position, export(session), greedy(session, 9, 4)
            assert found == (start + j, *hybrid_judge(text(start) + span(k)[:j])), (k, j)


def test_verify_answers_what_decoding_would(hybrid_model: OpenModel) -> None:
    session = hybrid_model.session()
    session.prefill(text(5))
    fed = [9, *greedy(session, 9, 6)]
    session.reset()
    session.prefill(text(5))
    assert verify(session, fed[:-1]) == fed[1:]
    trim(session, 5)
    assert verify_sampled(session, fed[:-1]) == fed[1:]


@pytest.mark.parametrize("kept", range(13))
def test_two_windows_before_the_trim(
    hybrid_model: OpenModel, hybrid_judge: Judge, kept: int
) -> None:
    session, tokens = hybrid_model.session(), text(4) + span(3) + text(5, seed=6)
    session.prefill(tokens[:4])
    verify(session, tokens[4:7])
    verify(session, tokens[7:])
    before = export(session)
    if kept in (0, *range(4, 13)):
        trim(session, kept)
        assert (export(session), greedy(session, 9, 4)) == hybrid_judge(tokens[:kept])
        if 4 < kept < 12:
            # A trim gives up every window.
            refused(raw(session, "trim_session", kept - 1), Status.RUNTIME_ERROR, "cannot go back")
    else:
        refused(raw(session, "trim_session", kept), Status.RUNTIME_ERROR, "cannot go back",
                f"to {kept}")
        assert (session.position, export(session)) == (12, before)


def test_a_retired_window_is_gone(hybrid_model: OpenModel, hybrid_judge: Judge) -> None:
    session, tokens = hybrid_model.session(), text(4) + span(5)
    session.prefill(tokens[:4])
    verify(session, tokens[4:])
    for wrong in ((4, 4), (3, 5), (5, 5), (2**64 - 1, 2**64 - 1)):
        refused(raw(session, "retire_verify_checkpoint", *wrong), Status.INVALID_ARGUMENT)
    call(session, "retire_verify_checkpoint", 4, 5)
    refused(raw(session, "retire_verify_checkpoint", 4, 5), Status.INVALID_ARGUMENT, "5 tokens")
    for kept in (4, 6, 8):
        refused(raw(session, "trim_session", kept), Status.RUNTIME_ERROR, "checkpoint")
    trim(session, 9)
    assert (export(session), greedy(session, 9, 4)) == hybrid_judge(tokens)


def test_one_window_may_be_retired_and_the_other_trimmed(
    hybrid_model: OpenModel, hybrid_judge: Judge
) -> None:
    session, tokens = hybrid_model.session(), text(4) + span(3) + text(5, seed=6)
    session.prefill(tokens[:4])
    verify(session, tokens[4:7])
    verify(session, tokens[7:])
    call(session, "retire_verify_checkpoint", 4, 3)
    refused(raw(session, "trim_session", 6), Status.RUNTIME_ERROR, "checkpoint")
    trim(session, 9)
    assert (export(session), greedy(session, 9, 4)) == hybrid_judge(tokens[:9])


def test_checkpoints_end(hybrid_model: OpenModel) -> None:
    session, host = hybrid_model.session(), hybrid_model.host
    for _ in range(64):
        verify(session, [1])
    before, out, counter = export(session), host.ffi.new("int32_t[1]"), host.ffi.new("size_t *")
    refused(raw(session, "verify_tokens", out, 1, out, 1, counter), Status.UNSUPPORTED, "64")
    assert (session.position, export(session)) == (64, before)
    trim(session, 64)
    verify(session, [1])


@pytest.mark.parametrize("lost", ["set_position", "restore", "import", "reset"])
def test_windows_end_with_what_they_were_of(
    hybrid_model: OpenModel, hybrid_judge: Judge, lost: str
) -> None:
    session, tokens = hybrid_model.session(), text(12)
    session.prefill(tokens)
    save(session, 8, 12)
    data = export(session)
    verify(session, span(4))
    if lost == "set_position":
        call(session, "session_set_position", 16)
    elif lost == "restore":
        call(session, "session_restore_prefix", 8, session.host.ffi.new("int32_t[]", tokens), 12)
    elif lost == "import":
        call(session, "import_full_state", 0, 8, session.host.ffi.new("char[]", data), len(data))
        call(session, "session_set_position", 12)
    else:
        session.reset()
    refused(raw(session, "retire_verify_checkpoint", 12, 4), Status.INVALID_ARGUMENT)
    held = {"set_position": tokens + span(4), "reset": []}.get(lost, tokens)
    assert (export(session), greedy(session, 9, 4)) == hybrid_judge(held)


def test_a_replay_without_room_asks_for_a_reset(
    runtime: Host, hybrids: Path, hybrid_judge: Judge
) -> None:
    """A saved prefix keeps the cells of the window, and the replay needs some of its own."""
    model = opened(runtime, hybrids, ctx=28)
    session = model.session()
    session.prefill(text(20))
    verify(session, span(8))
    save(session, 8, 28)
    refused(raw(session, "trim_session", 24), Status.RUNTIME_ERROR, "28 in total")
    out = runtime.ffi.new("int32_t *")
    for name, *args in (("trim_session", 20), ("decode_step_sampled_mtp", 1, runtime.ffi.NULL, out,
                                              0, runtime.ffi.NULL)):
        refused(raw(session, name, *args), Status.RUNTIME_ERROR, "needs a reset")
    session.reset()
    call(session, "session_drop_sequence", 8)
    session.prefill(text(10))
    assert (export(session), greedy(session, 9, 4)) == hybrid_judge(text(10))
    model.free()


@pytest.mark.parametrize("n_right", range(5))
def test_a_sampler_never_saw_the_rejected_tokens(hybrid_model: OpenModel, n_right: int) -> None:
    """Penalties, random state and the hybrid's state equal those of the run without a span."""
    plain, spanned = with_and_without_a_span(hybrid_model, text(6), n_right, n_vocab=300)
    assert export(spanned) == export(plain)


def test_current_logits_behind_a_trim_are_those_of_the_kept_token(
    hybrid_model: OpenModel, runtime: Host
) -> None:
    session, out = hybrid_model.session(), runtime.ffi.new("int32_t *")
    session.prefill(text(6))
    chosen = verify(session, span(5))
    trim(session, 9)
    call(session, "session_sample_current", runtime.ffi.NULL, out)
    assert out[0] == chosen[2]
