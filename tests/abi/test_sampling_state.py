"""Guards what a session's choices remember: random state, chat chains, signals and windows."""

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel, OpenSession
from tests.abi.steps import (
    batch,
    call,
    raw,
    refused,
    trim,
    verify,
    verify_sampled,
)

N_VOCAB = 320
PROMPT = [10, 20, 30, 40]
INF, NAN = math.inf, math.nan
INVALID = Status.INVALID_ARGUMENT


@pytest.fixture
def session(tiny_model: OpenModel) -> Iterator[OpenSession]:
    made = tiny_model.session()
    made.prefill(PROMPT)
    yield made
    made.free()


# Random state


def drawn(session: OpenSession, sampling: Any, n: int = 10) -> list[int]:
    token, found = 9, []
    for _ in range(n):
        token = session.decode(token, sampling)
        found.append(token)
    return found


def test_a_seed_repeats_and_seed_zero_does_not(tiny_model: OpenModel, runtime: Host) -> None:
    runs = []
    for seed in (7, 7, 8, 0, 0):
        session = tiny_model.session()
        session.prefill(PROMPT)
        runs.append(drawn(session, runtime.sampling(seed=seed), 16))
        session.free()
    assert runs[0] == runs[1]
    assert len({tuple(r) for r in runs[1:]}) == 4


def test_an_equal_config_continues_and_another_starts_again(
    tiny_model: OpenModel, runtime: Host
) -> None:
    session = tiny_model.session()
    session.prefill(PROMPT)
    one = drawn(session, runtime.sampling(seed=7), 12)
    session.reset()
    session.prefill(PROMPT)
    noise = runtime.sampling(seed=7)
    found = drawn(session, runtime.sampling(seed=7), 6)
    # What lies behind the used bias entries is no part of the config.
    noise.logit_bias[5].token = 77
    token = found[-1]
    for _ in range(6):
        token = session.decode(token, noise)
        found.append(token)
    assert found == one
    session.free()


def test_a_refused_call_leaves_the_random_state_alone(
    tiny_model: OpenModel, runtime: Host
) -> None:
    sampling, other = runtime.sampling(seed=7), runtime.sampling(seed=8, top_k=5)
    session, partner = tiny_model.session(), tiny_model.session()
    session.prefill(PROMPT)
    wanted = drawn(session, sampling, 12)
    session.reset()
    session.prefill(PROMPT)
    token, found = 9, []
    bad = runtime.sampling(temperature=NAN)
    for _ in range(12):
        token = session.decode(token, sampling)
        found.append(token)
        assert batch([session, partner], [1, N_VOCAB], [other, None])[0] == INVALID
        assert batch([session, partner], [1, 1], [sampling, bad])[0] == INVALID
        assert batch([session, partner], [1, 1], [other, bad])[0] == INVALID
        with pytest.raises(AbiError):
            verify_sampled(session, [1, 2, N_VOCAB], other)
    assert found == wanted
    assert partner.position == 0
    session.free()
    partner.free()


def test_sample_current_does_not_advance(session: OpenSession, runtime: Host) -> None:
    ffi, out = runtime.ffi, runtime.ffi.new("int32_t *")
    refused(raw(session, "session_sample_current", ffi.NULL, out), Status.RUNTIME_ERROR)
    token = session.decode(9)
    for _ in range(3):
        call(session, "session_sample_current", ffi.NULL, out)
        assert (out[0], session.position) == (token, 5)
    refused(raw(session, "session_sample_current", ffi.NULL, ffi.NULL), INVALID)
    trim(session, 4)
    refused(raw(session, "session_sample_current", ffi.NULL, out), Status.RUNTIME_ERROR)


# Chat sampling


def test_chat_sampling_overrides_until_reset_or_trim(session: OpenSession, runtime: Host) -> None:
    ban = session.decode(9)
    trim(session, 4)
    chat = runtime.sampling(temperature=0.0, logit_bias=[(ban, -INF)])
    session.configure_chat("{}", 4, chat)
    assert session.decode(9) != ban
    trim(session, 5)
    session.configure_chat("{}", 4, chat)
    trim(session, 4)
    assert session.decode(9) == ban
    trim(session, 4)
    session.configure_chat("{}", 4, chat)
    session.reset()
    session.prefill(PROMPT)
    assert session.decode(9) == ban


@pytest.mark.parametrize("metadata", [
    None, b"", b"no json", b"[1]", b"null", b"5", b"\xff\xfe{}", b'{"grammar":5}', b"{" * 5000,
    b'{"grammar":"start: \\"a\\"","grammar_lazy":true,"grammar_triggers":5}',
    b'{"grammar":"start: \\"a\\"","grammar_lazy":1}', b'{"grammar":"\\ud83d"}',
    b'{"grammar":"x","grammar_lazy":true,"grammar_triggers":[{"type":1,"value":"\\ud83d"}]}',
    b'{"a":' + b"9" * 5000 + b"}",
])
def test_metadata_that_is_none_forgets_chat_sampling(
    session: OpenSession, runtime: Host, metadata: bytes | None
) -> None:
    ban = session.decode(9)
    trim(session, 4)
    session.configure_chat("{}", 4, runtime.sampling(temperature=0.0, logit_bias=[(ban, -INF)]))
    given = runtime.ffi.NULL if metadata is None else runtime.ffi.new("char[]", metadata)
    call(session, "session_configure_chat_sampling", runtime.ffi.NULL, given, 2**64 - 1)
    assert session.decode(9) == ban


def test_a_failing_configuration_leaves_none(session: OpenSession, runtime: Host) -> None:
    ban = session.decode(9)
    trim(session, 4)
    session.configure_chat("{}", 4, runtime.sampling(temperature=0.0, logit_bias=[(ban, -INF)]))
    with pytest.raises(AbiError, match="temperature") as error:
        session.configure_chat("{}", 4, runtime.sampling(temperature=NAN))
    assert error.value.status == INVALID
    assert session.decode(9) == ban


def test_exact_seeds_of_our_own_metadata(tiny_model: OpenModel, runtime: Host) -> None:
    runs = []
    for seed in (2**64 - 1, 2**64 - 1, 2**63):
        session = tiny_model.session()
        session.prefill(PROMPT)
        metadata = json.dumps({"sampler": {"seed": str(seed), "temperature": 1.5}})
        session.configure_chat(metadata, 4, runtime.sampling(seed=1))
        runs.append(drawn(session, None))
        session.free()
    assert runs[0] == runs[1] != runs[2]


# Signals


def logits_of(session: OpenSession) -> np.ndarray:
    """The engine's last row: the library shares this process's Python."""
    from engine.session import Session
    from skippy_abi import handles
    from skippy_abi.cffi_module import ffi

    number = int(session.host.ffi.cast("uintptr_t", session.handle))
    inner = handles.take(ffi.cast("struct skippy_session *", number), Session, "session")
    return np.asarray(inner.last_row.array(), np.float64)


def expected_signal(row: np.ndarray) -> dict[str, float]:
    log_p = row - row.max()
    log_p = log_p - math.log(math.fsum(np.exp(log_p)))
    first, second = np.argsort(-row, kind="stable")[:2]
    entropy = -math.fsum(np.exp(log_p) * log_p)
    return {"entropy": entropy, "top_logprob": log_p[first], "second_logprob": log_p[second],
            "margin": log_p[first] - log_p[second], "top_token": first, "second_token": second}


def test_signals_and_windows_are_the_arithmetic(session: OpenSession) -> None:
    ffi = session.host.ffi
    signal = ffi.new("struct skippy_token_signal *")
    window = ffi.new("struct skippy_generation_signal_window *")
    refused(raw(session, "session_signal_window", 4, window), INVALID, "0 signals")
    token, kept, fed = 9, [], [*PROMPT]
    for n in range(1, 8):
        fed.append(token)
        token = session.decode(token if n != 3 else fed[-2])
        fed[-1] = fed[-1] if n != 3 else fed[-2]
        kept.append(expected_signal(logits_of(session)))
        for size in (1, 3, 16, 2**32 - 1):
            call(session, "session_signal_window", size, window)
            last = kept[-size:]
            entropies = [s["entropy"] for s in last]
            margins = [s["margin"] for s in last]
            found = [window.token_count, window.mean_entropy, window.max_entropy,
                     window.mean_margin, window.min_margin, window.high_entropy_count,
                     window.repetition_count]
            tail = fed[-size:]
            wanted = [len(last), np.mean(entropies), max(entropies), np.mean(margins),
                      min(margins), sum(e > 4.0 for e in entropies),
                      sum(a == b for a, b in itertools.pairwise(tail))]
            assert found == pytest.approx(wanted, rel=1e-5)
    call(session, "session_last_token_signal", signal)
    for name, value in kept[-1].items():
        assert getattr(signal, name) == pytest.approx(value, rel=1e-5), name
    refused(raw(session, "session_signal_window", 0, window), INVALID)


def test_a_signal_comes_after_any_step_with_logits(session: OpenSession) -> None:
    ffi = session.host.ffi
    signal = ffi.new("struct skippy_token_signal *")
    refused(raw(session, "session_last_token_signal", signal), INVALID)
    token = session.prefill_sampled([5, 6])
    call(session, "session_last_token_signal", signal)
    assert signal.top_token == token
    verify(session, [1, 2])
    call(session, "session_last_token_signal", signal)
    assert signal.top_token == expected_signal(logits_of(session))["top_token"]
    session.reset()
    refused(raw(session, "session_last_token_signal", signal), INVALID)
