"""Owns the proof of the sampler's lifecycle: draw counts, continuation, rewind, and records.

Rows come from a fake engine whose logits depend on the tokens fed, so a state that drifts by one
token changes everything after it.
"""

from dataclasses import replace

import numpy as np
import pytest

from engine.errors import InvalidArgument, RuntimeFailure
from engine.sampling import (
    Sampler,
    SamplerState,
    SamplingConfig,
    SessionSampling,
    greedy_token,
    greedy_tokens,
    rng,
)

N_VOCAB = 50
PLAIN = SamplingConfig(version=1, flags=1, seed=77, temperature=1.3)
CHAIN = replace(PLAIN, top_k=20, top_p=0.9, repeat_penalty=1.2, frequency_penalty=0.3)
PROMPT = [3, 1, 4, 1, 5]


def logits_after(history):
    seed = np.array(history, dtype=np.uint64)
    return np.random.default_rng(seed).standard_normal(N_VOCAB).astype(np.float32)


def generate(sampler, n_tokens, history=PROMPT):
    history = list(history)
    for _ in range(n_tokens):
        history.append(sampler.choose(logits_after(history), history).token)
    return history[len(PROMPT) :]


def verify(sampler, history, inputs):
    """Choose after each fed input, stopping at the first choice that differs from the next one."""
    chosen = []
    for index, token in enumerate(inputs):
        history.append(token)
        chosen.append(sampler.choose(logits_after(history), history).token)
        if index + 1 < len(inputs) and chosen[-1] != inputs[index + 1]:
            break
    return chosen


@pytest.mark.parametrize("config", [PLAIN, CHAIN], ids=["plain", "chain"])
def test_one_word_for_each_token_and_the_same_tokens_again(config):
    sampler = Sampler(config, N_VOCAB)
    first = generate(sampler, 25)
    assert sampler.n_drawn == 25
    assert generate(Sampler(config, N_VOCAB), 25) == first
    assert generate(Sampler(config, N_VOCAB), 9) == first[:9]
    assert generate(Sampler(replace(config, seed=78), N_VOCAB), 25) != first


@pytest.mark.parametrize("config", [PLAIN, CHAIN], ids=["plain", "chain"])
def test_one_word_even_where_only_one_token_is_possible(config):
    one = Sampler(config, 1)
    assert [one.choose(np.zeros(1, dtype=np.float32)).draw_index for _ in range(3)] == [0, 1, 2]
    peaked = Sampler(config, N_VOCAB)
    logits = np.zeros(N_VOCAB, dtype=np.float32)
    logits[7] = 1e6
    assert [peaked.choose(logits).token for _ in range(3)] == [7, 7, 7]
    assert peaked.n_drawn == 3


def test_a_zero_temperature_or_no_config_draws_nothing_and_equals_greedy():
    greedy = generate(Sampler(None, N_VOCAB), 20)
    sampler = Sampler(replace(PLAIN, temperature=0.0), N_VOCAB)
    assert generate(sampler, 20) == greedy
    assert (sampler.n_drawn, sampler.seed) == (0, None)
    selection = sampler.choose(logits_after(PROMPT))
    assert (selection.seed, selection.draw_index) == (None, None)


def test_a_selection_can_be_replayed_from_what_it_records():
    sampler = Sampler(CHAIN, N_VOCAB)
    generate(sampler, 6)
    record = sampler.choose(logits_after(PROMPT), PROMPT)
    assert (record.seed, record.draw_index, record.config) == (77, 6, CHAIN)
    again = Sampler(record.config, N_VOCAB)
    again.restore(SamplerState(record.seed, record.draw_index))
    assert again.choose(logits_after(PROMPT), PROMPT) == record


@pytest.mark.parametrize("config", [PLAIN, CHAIN], ids=["plain", "chain"])
@pytest.mark.parametrize("n_right", range(5))
def test_after_a_verified_draft_the_state_is_that_of_a_straight_run(config, n_right):
    straight_sampler = Sampler(config, N_VOCAB)
    straight = generate(straight_sampler, 20)
    sampler = Sampler(config, N_VOCAB)
    history = list(PROMPT)
    pending = sampler.choose(logits_after(history), history).token
    draft = [*straight[1 : 1 + n_right], (straight[1 + n_right] + 1) % N_VOCAB, 0]
    chosen = verify(sampler, history, [pending, *draft])
    assert chosen == straight[1 : 2 + n_right]
    assert sampler.n_drawn == 2 + n_right
    assert history == PROMPT + straight[: 1 + n_right]
    history.append(chosen[-1])
    rest = generate(sampler, 20 - 2 - n_right, history)
    assert rest == straight


@pytest.mark.parametrize("config", [PLAIN, CHAIN], ids=["plain", "chain"])
@pytest.mark.parametrize("n_kept", range(9))
def test_rewind_takes_back_exactly_the_draws_beyond_the_history(config, n_kept):
    sampling = SessionSampling(N_VOCAB)
    straight = generate(sampling.sampler_for(config), 9)
    # n_kept generated tokens stay fed; the draw that follows the last of them stays made.
    sampling.rewind(len(PROMPT) + n_kept)
    sampler = sampling.sampler_for(config)
    assert sampler.n_drawn == n_kept + 1
    history = PROMPT + straight[: n_kept + 1]
    assert generate(sampler, 9 - 1 - n_kept, history) == straight


def test_snapshots_restore_backwards_and_forwards():
    sampler = Sampler(PLAIN, N_VOCAB)
    tokens = generate(sampler, 4)
    state = sampler.snapshot()
    assert state == SamplerState(77, 4)
    later = generate(sampler, 5, PROMPT + tokens)
    end = sampler.snapshot()
    sampler.restore(state)
    assert generate(sampler, 5, PROMPT + tokens) == later
    fresh = Sampler(PLAIN, N_VOCAB)
    fresh.restore(end)
    assert fresh.n_drawn == 9
    # Draws made elsewhere carry no history here, so a rewind keeps them.
    fresh.rewind(0)
    assert fresh.n_drawn == 9
    partly_own = Sampler(PLAIN, N_VOCAB)
    generate(partly_own, 2)
    partly_own.restore(end)
    partly_own.rewind(0)
    assert partly_own.n_drawn == 9
    fresh.restore(state)
    assert generate(fresh, 5, PROMPT + tokens) == later
    with pytest.raises(InvalidArgument, match="seed"):
        Sampler(replace(PLAIN, seed=78), N_VOCAB).restore(state)


def test_an_equal_config_continues_and_another_starts_again():
    sampling = SessionSampling(N_VOCAB)
    sampler = sampling.sampler_for(CHAIN)
    generate(sampler, 3)
    assert sampling.sampler_for(replace(CHAIN)) is sampler
    assert sampling.sampler_for(None).config is None
    assert sampling.sampler_for(replace(CHAIN, flags=0)).n_drawn == 0
    assert sampling.sampler_for(CHAIN) is sampler
    padded = replace(CHAIN, logit_bias=((1, 0.5),) * 256)
    other = sampling.sampler_for(padded)
    assert (other is sampler, other.n_drawn) == (False, 0)
    beyond = replace(CHAIN, logit_bias=((1, 0.5),) * 256 + ((2, 0.5),))
    assert sampling.sampler_for(beyond) is other
    assert sampling.sampler_for(CHAIN).n_drawn == 0


def test_a_refused_config_leaves_the_current_sampler_alone():
    sampling = SessionSampling(N_VOCAB)
    sampler = sampling.sampler_for(PLAIN)
    generate(sampler, 2)
    with pytest.raises(InvalidArgument):
        sampling.sampler_for(replace(PLAIN, repeat_penalty=-1.0))
    assert sampling.sampler_for(PLAIN) is sampler


def test_a_reset_starts_the_sequence_again():
    sampling = SessionSampling(N_VOCAB)
    first = generate(sampling.sampler_for(PLAIN), 5)
    sampling.reset()
    sampling.rewind(0)
    assert generate(sampling.sampler_for(PLAIN), 5) == first


def test_the_words_are_those_of_the_seed():
    sampler = Sampler(PLAIN, 2)
    chosen = [sampler.choose(np.zeros(2, dtype=np.float32)).token for _ in range(64)]
    assert chosen == [rng.word(77, index) >> 63 for index in range(64)]


def test_greedy_takes_the_highest_logit_and_the_lowest_id():
    assert greedy_token(np.array([1, 5, 5, 2], dtype=np.float32)) == 1
    assert greedy_token(np.array([-0.0, 0.0], dtype=np.float32)) == 0
    rows = np.array([[1, 2], [4, 3], [0, 0]], dtype=np.float32)
    assert greedy_tokens(rows) == [1, 0, 0]
    assert greedy_tokens(rows[:0]) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("token", [0, 2])
def test_greedy_refuses_a_row_that_is_not_finite(bad, token):
    rows = np.ones((3, 3), dtype=np.float32)
    rows[1, token] = bad
    with pytest.raises(RuntimeFailure, match=f"at token {token} of 3"):
        greedy_token(rows[1])
    with pytest.raises(RuntimeFailure):
        greedy_tokens(rows)
    with pytest.raises(InvalidArgument):
        greedy_token(rows[0, :0])
