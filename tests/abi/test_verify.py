"""Guards spans: verify k tokens, keep j of them, and go on as if the rest had never been seen."""

from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel
from tests.abi.steps import (
    call,
    export,
    greedy,
    ids,
    raw,
    refused,
    straight,
    trim,
    verify,
    verify_sampled,
    with_and_without_a_span,
)

STARTS = [0, 1, 3, 40]


def prompt(n: int) -> list[int]:
    return [(7 * i + 3) % 256 for i in range(n)]


def span(k: int) -> list[int]:
    return [(31 * i + 100) % 256 for i in range(k)]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("function", [verify, verify_sampled])
def test_trim_to_every_j_is_the_straight_run(
    tiny_model: OpenModel, function: Any, k: int, start: int
) -> None:
    session = tiny_model.session()
    for j in range(k + 1):
        session.reset()
        if start:
            session.prefill(prompt(start))
        assert len(function(session, span(k))) == k
        assert session.position == start + k
        trim(session, start + j)
        wanted = straight(tiny_model, prompt(start) + span(k)[:j])
        assert (session.position, export(session), greedy(session, 9, 4)) == (start + j, *wanted)
    session.free()


def test_verify_answers_what_decoding_would(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill(prompt(5))
    fed = [9, *greedy(session, 9, 6)]
    session.reset()
    session.prefill(prompt(5))
    assert verify(session, fed[:-1]) == fed[1:]
    trim(session, 5)
    assert verify_sampled(session, fed[:-1]) == fed[1:]
    session.free()


def test_two_windows_before_the_trim(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill(prompt(4))
    verify(session, span(3))
    verify(session, span(5))
    for kept in (10, 8, 7, 5, 4, 2, 0):
        trim(session, kept)
        assert export(session) == straight(tiny_model, (prompt(4) + span(3) + span(5))[:kept])[0]
    session.free()


def test_retiring_is_fine_and_changes_nothing(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill(prompt(4))
    verify(session, span(5))
    before = export(session)
    for start, count in ((4, 5), (4, 5), (0, 1), (2**64 - 1, 2**64 - 1)):
        call(session, "retire_verify_checkpoint", start, count)
    assert (session.position, export(session)) == (9, before)
    trim(session, 6)
    assert (export(session), greedy(session, 9, 4)) == straight(tiny_model, prompt(4) + span(2))
    session.free()


@pytest.mark.parametrize("n", [10, 2**31, 2**63, 2**64 - 1])
def test_trim_beyond_the_position_is_refused(tiny_model: OpenModel, n: int) -> None:
    session = tiny_model.session()
    session.prefill(prompt(9))
    before = export(session)
    refused(raw(session, "trim_session", n), Status.INVALID_ARGUMENT, str(n), "position is 9")
    trim(session, 9)
    assert (session.position, export(session)) == (9, before)
    session.free()


def test_more_tokens_than_one_pass_are_refused(runtime: Host, tiny_path: Any) -> None:
    model = OpenModel(runtime, tiny_path, ctx_size=1024)
    session = model.session()
    with pytest.raises(AbiError, match="513 tokens, at most 512"):
        verify(session, [1] * 513)
    assert session.position == 0
    assert len(verify(session, [1] * 512)) == 512
    model.free()


@pytest.mark.parametrize("n_right", range(5))
def test_a_sampler_never_saw_the_rejected_tokens(tiny_model: OpenModel, n_right: int) -> None:
    """Penalties and random state after verify, trim and going on equal the run without a span."""
    for session in with_and_without_a_span(tiny_model, prompt(6), n_right, n_vocab=256):
        session.free()


def test_the_first_span_of_a_sampler_does_not_stop(tiny_model: OpenModel, runtime: Host) -> None:
    sampling = runtime.sampling(seed=5)
    session = tiny_model.session()
    session.prefill(prompt(6))
    # No chain exists yet, so every row is answered; the next span meets one.
    assert len(verify_sampled(session, span(6), sampling)) == 6
    trim(session, 6)
    assert len(verify_sampled(session, span(6), sampling)) < 6
    session.free()


def test_verify_needs_its_counter_and_room(tiny_model: OpenModel) -> None:
    session, ffi = tiny_model.session(), tiny_model.host.ffi
    session.prefill(prompt(3))
    out, counter = ffi.new("int32_t[4]"), ffi.new("size_t *")
    tokens = ids(session, span(4))
    refused(raw(session, "verify_tokens", tokens, 4, out, 4, ffi.NULL), Status.INVALID_ARGUMENT,
            "out_token_count")
    assert raw(session, "verify_tokens", tokens, 4, out, 3, counter)[0] == Status.BUFFER_TOO_SMALL
    assert (counter[0], session.position) == (4, 3)
    refused(raw(session, "verify_tokens", tokens, 0, out, 4, counter), Status.INVALID_ARGUMENT)
    session.free()
