"""Guards rows without a token: the padded twin's three last ids, loud as they are, never win."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel, OpenSession
from tests.abi.hybrid import opened, text
from tests.abi.steps import batch, call, ids, raw, refused, trim, verify, verify_sampled

N_REAL, N_ROWS = 317, 320
CONFIGS = {
    "greedy": None,
    "temperature 1": {"seed": 1},
    "temperature 0": {"temperature": 0.0},
    "hot": {"seed": 2, "temperature": 100.0},
    "chain": {"seed": 3, "top_k": 1000, "top_p": 0.99, "min_p": 1e-6, "temperature": 3.0},
    "penalties": {"seed": 4, "repeat_penalty": 5.0, "presence_penalty": 2.0, "penalty_last_n": 64},
    "bias": {"seed": 5, "logit_bias": [(i, -1e6) for i in range(200)]},
}
GRAMMAR = '{"grammar":"start: /[a-z]+/","grammar_lazy":false}'


@pytest.fixture
def session(runtime: Host, hybrids: Path) -> Iterator[OpenSession]:
    model = opened(runtime, hybrids, "padded", n_lanes=3, ctx=600)
    yield model.session()
    model.free()


@pytest.mark.parametrize("name", CONFIGS)
def test_only_tokens_are_chosen(session: OpenSession, runtime: Host, name: str) -> None:
    fields = CONFIGS[name]
    sampling = None if fields is None else runtime.sampling(**fields)
    given = sampling or runtime.ffi.NULL
    chosen = [session.prefill_sampled(text(12), sampling)]
    for _ in range(40):
        chosen.append(session.decode(chosen[-1], sampling))
    chosen += verify_sampled(session, text(8, seed=2), sampling)
    chosen += verify(session, text(8, seed=3))
    out = runtime.ffi.new("int32_t *")
    call(session, "session_sample_current", given, out)
    chosen.append(out[0])
    other = session.model.session()
    other.prefill(text(5))
    chosen += batch([session, other], [1, 2], [given, given])[2]
    trim(other, 0)
    assert len(chosen) >= 53
    assert max(chosen) < N_REAL
    assert min(chosen) >= 0


def test_a_grammar_allows_tokens_only(session: OpenSession, runtime: Host) -> None:
    session.prefill(text(12))
    session.configure_chat(GRAMMAR, 12, runtime.sampling(seed=6, temperature=50.0))
    token, letters = ord("a"), []
    for _ in range(20):
        token = session.decode(token)
        assert token < N_REAL
        letters.append(session.model.detokenize([token]))
    assert b"".join(letters).isalpha()


def test_signals_rank_tokens_only(session: OpenSession, runtime: Host) -> None:
    signal = runtime.ffi.new("struct skippy_token_signal *")
    token = session.prefill_sampled(text(12))
    for _ in range(10):
        token = session.decode(token)
        call(session, "session_last_token_signal", signal)
        assert signal.top_token == token
        assert 0 <= signal.second_token < N_REAL
        assert signal.second_logprob <= signal.top_logprob < 0


@pytest.mark.parametrize("bad", range(N_REAL, N_ROWS))
def test_rows_without_a_token_are_no_input(
    session: OpenSession, runtime: Host, bad: int
) -> None:
    session.prefill(text(3))
    for call_it in (lambda: session.prefill([1, bad]), lambda: session.decode(bad),
                    lambda: verify(session, [bad]),
                    lambda: session.decode(1, runtime.sampling(logit_bias=[(bad, 1.0)]))):
        with pytest.raises(AbiError) as caught:
            call_it()
        assert caught.value.status == Status.INVALID_ARGUMENT
        assert str(bad) in (caught.value.message or "")
    refused(raw(session, "session_restore_prefix", 8, ids(session, [bad]), 1),
            Status.INVALID_ARGUMENT)
    assert session.position == 3


def test_text_of_a_row_without_a_token(runtime: Host, hybrids: Path) -> None:
    model: OpenModel = opened(runtime, hybrids, "padded")
    with pytest.raises(AbiError) as caught:
        model.detokenize([N_REAL])
    assert caught.value.status == Status.INVALID_ARGUMENT
    assert not model.is_eog(N_REAL)
    model.free()
