"""Owns the proof of the chain: an independent Python model of it, ties, masks, and equality.

`model` is written from the order of the contract with lists and `math`; it shares nothing with the
engine. Past 250 lines because that model stands beside the cases it judges.
"""

import math
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest

from engine.errors import InvalidArgument, RuntimeFailure
from engine.sampling import Sampler, SamplingConfig, chain, rng

BASE = SamplingConfig(version=1, flags=1, seed=5, temperature=1.0)


@pytest.fixture(autouse=True)
def _warnings_fail():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def row(*logits):
    return np.array(logits, dtype=np.float32)


def model_adjusted(logits, config, history, mask):
    z = [float(value) if mask is None or mask[i] else -math.inf for i, value in enumerate(logits)]
    window = list(history)
    if config.penalty_last_n > 0:
        window = window[-config.penalty_last_n :]
    repeat = config.repeat_penalty if config.repeat_penalty != 0 else 1.0
    for token in set(window):
        z[token] = z[token] / repeat if z[token] > 0 else z[token] * repeat
        z[token] -= window.count(token) * config.frequency_penalty
        z[token] -= config.presence_penalty
    for token, bias in config.logit_bias[:256]:
        z[token] += bias
    return z


def model_survivors(z, config):
    """Ids, best first; among equals the lowest id first."""
    ranked = sorted((i for i in range(len(z)) if z[i] > -math.inf), key=lambda i: (-z[i], i))
    if config.top_k > 0:
        ranked = ranked[: config.top_k]
    best = z[ranked[0]]
    if 0 < config.top_p < 1:
        weights = [math.exp(z[i] - best) for i in ranked]
        reached, kept = 0.0, 0
        while reached < config.top_p * sum(weights):
            reached += weights[kept]
            kept += 1
        ranked = ranked[:kept]
    if 0 < config.min_p < 1:
        ranked = [i for i in ranked if z[i] >= best + math.log(config.min_p)]
    return ranked


def model_choice(logits, config, history, mask, u):
    z = model_adjusted(logits, config, history, mask)
    kept = sorted(model_survivors(z, config))
    if config.temperature <= 0:
        return max(kept, key=lambda i: (z[i], -i)), 0.0
    best = max(z[i] for i in kept)
    weights = [math.exp((z[i] - best) / config.temperature) for i in kept]
    total = 0.0
    for weight in weights:
        total += weight
    reached = 0.0
    for token, weight in zip(kept, weights, strict=True):
        reached += weight
        if reached > u * total:
            return token, (z[token] - best) / config.temperature - math.log(total)
    raise AssertionError("no token reached")


def random_case(source):
    n_vocab = source.randint(1, 24)
    # A coarse grid makes exact ties common.
    logits = row(*(source.randint(-12, 12) / 4 for _ in range(n_vocab)))
    history = [source.randrange(n_vocab) for _ in range(source.randint(0, 30))]
    bias = tuple(
        (source.randrange(n_vocab), source.choice([-math.inf, -1.5, 0.25, 2.0]))
        for _ in range(source.choice([0, 0, 1, 3]))
    )
    config = SamplingConfig(
        version=1,
        flags=1,
        seed=source.randint(1, 2**32 - 1),
        top_k=source.choice([0, -1, 1, 2, 5, 40]),
        penalty_last_n=source.choice([-1, 0, 1, 4, 64]),
        temperature=source.choice([0.0, 0.3, 0.8, 1.0, 2.5]),
        top_p=source.choice([1.0, 0.95, 0.7, 0.31, 0.01]),
        presence_penalty=source.choice([0.0, 0.0, 0.6, -0.4]),
        frequency_penalty=source.choice([0.0, 0.0, 0.3, -0.2]),
        repeat_penalty=source.choice([1.0, 0.0, 1.3, 0.7]),
        min_p=source.choice([0.0, 0.05, 0.3, 0.9]),
        logit_bias=bias,
    )
    mask = None
    if source.random() < 0.4:
        mask = np.array([source.random() < 0.6 for _ in range(n_vocab)])
    return logits, config, history, mask


@pytest.mark.parametrize("block", range(8))
def test_random_configs_agree_with_the_model(block):
    source = random.Random(block)
    n_failures = 0
    for _ in range(400):
        logits, config, history, mask = random_case(source)
        z = model_adjusted(logits, config, history, mask)
        sampler = Sampler(config, len(logits))
        if max(z) == -math.inf:
            n_failures += 1
            with pytest.raises(RuntimeFailure):
                sampler.choose(logits, history, mask)
            assert sampler.n_drawn == 0
            continue
        for draw in range(4):
            given = history if draw % 2 else np.array(history, dtype=np.int32)
            selection = sampler.choose(logits, given, mask)
            u = rng.uniform(rng.word(config.seed, draw))
            token, log_p = model_choice(logits, config, history, mask, u)
            assert (selection.token, config) == (token, config)
            assert abs(selection.log_p_sampler - log_p) < 1e-12
        assert sampler.n_drawn == (4 if config.temperature > 0 else 0)
    assert n_failures > 0


def kept(logits, config, history=(), mask=None):
    return chain.survivors(row(*logits), config, history, mask)[0].tolist()


def test_ties_at_the_edge_go_to_the_lowest_ids():
    assert kept([1, 5, 3, 3, 3, 9], replace(BASE, top_k=4)) == [1, 2, 3, 5]
    assert kept([7] * 6, replace(BASE, top_k=2)) == [0, 1]
    assert kept([0] * 4, replace(BASE, top_p=0.5)) == [0, 1]
    assert kept([0] * 4, replace(BASE, top_p=0.51)) == [0, 1, 2]
    assert kept([0, 0, 0, 4], replace(BASE, top_p=0.96)) == [0, 3]


def test_filters_see_what_the_filter_before_them_left():
    # Over all four, 0.6 of the mass needs three tokens; over the best two it needs two.
    logits = [math.log(4), math.log(3), math.log(2), math.log(1)]
    assert kept(logits, replace(BASE, top_p=0.71)) == [0, 1, 2]
    assert kept(logits, replace(BASE, top_k=2, top_p=0.71)) == [0, 1]
    assert kept(logits, replace(BASE, top_k=2, top_p=0.5)) == [0]
    assert kept(logits, replace(BASE, min_p=0.49)) == [0, 1, 2]
    # The temperature comes last, so it does not move the edge.
    assert kept(logits, replace(BASE, min_p=0.49, temperature=0.01)) == [0, 1, 2]
    assert kept(logits, replace(BASE, top_p=0.71, temperature=50.0)) == [0, 1, 2]


def test_min_p_keeps_a_token_exactly_on_its_edge():
    on_the_edge = replace(BASE, min_p=0.5, logit_bias=((1, math.log(0.5)),))
    assert kept([0, 0, -1], on_the_edge) == [0, 1]


def test_a_neutral_filter_beside_an_active_one_cuts_nothing():
    for neutral in ({"top_p": 1.0}, {"top_p": 0.0}, {"min_p": 1.0}, {"min_p": 0.0}):
        assert kept([3, 1, 2, 0], replace(BASE, top_k=3, **neutral)) == [0, 1, 2]


def test_banned_tokens_are_no_survivors():
    bans = replace(BASE, logit_bias=((1, -math.inf), (3, -math.inf)))
    assert kept([3, 9, 2, 0], bans) == [0, 2]
    assert kept([3, 9, 2, 0], replace(bans, top_k=3)) == [0, 2]
    assert kept([3, 9, 2, 0], replace(bans, top_p=0.999999)) == [0, 2]


def test_penalties_come_before_the_bias_and_see_the_window():
    config = replace(BASE, repeat_penalty=2.0, penalty_last_n=2, logit_bias=((1, 1.0),))
    _, z = chain.survivors(row(4, 4, -4, 4), config, [3, 1, 2], None)
    assert z.tolist() == [4.0, 3.0, -8.0, 4.0]
    _, z = chain.survivors(row(4, 4, -4, 4), replace(config, penalty_last_n=-1), [3, 1, 2], None)
    assert z.tolist() == [4.0, 3.0, -8.0, 2.0]
    counted = replace(BASE, frequency_penalty=0.5, presence_penalty=0.25, penalty_last_n=64)
    _, z = chain.survivors(row(1, 1, 1), counted, [1, 1, 1, 2], None)
    assert z.tolist() == [1.0, -0.75, 0.25]


def test_zero_and_minus_one_mean_the_whole_history():
    history = [0] * 500 + [1]
    for window in (0, -1, 501):
        config = replace(BASE, presence_penalty=1.0, penalty_last_n=window)
        assert chain.survivors(row(1, 1, 1), config, history, None)[1].tolist() == [0, 0, 1]
    config = replace(BASE, presence_penalty=1.0, penalty_last_n=1)
    assert chain.survivors(row(1, 1, 1), config, history, None)[1].tolist() == [1, 0, 1]


def test_a_history_token_outside_the_vocabulary_is_refused():
    config = replace(BASE, presence_penalty=1.0)
    for history in ([-1, 0], [0, 3]):
        with pytest.raises(InvalidArgument, match="needs 0 to 2"):
            chain.survivors(row(1, 1, 1), config, history, None)


def test_a_mask_comes_first_and_counts_for_every_config():
    logits = row(9, 8, 7, 6)
    mask = np.array([False, True, False, True])
    assert Sampler(None, 4).choose(logits, mask=mask).token == 1
    assert Sampler(replace(BASE, flags=0), 4).choose(logits, mask=mask).token == 1
    assert Sampler(replace(BASE, temperature=0.0), 4).choose(logits, mask=mask).token == 1
    sampler = Sampler(replace(BASE, top_k=2), 4)
    assert {sampler.choose(logits, mask=mask).token for _ in range(60)} == {1, 3}
    bias = replace(BASE, logit_bias=((0, 1e30),))
    assert 0 not in {Sampler(bias, 4).choose(logits, mask=mask).token for _ in range(20)}


def test_a_mask_that_allows_nothing_or_does_not_fit():
    for config in (None, BASE, replace(BASE, top_k=2)):
        sampler = Sampler(config, 3)
        with pytest.raises(RuntimeFailure, match="ban every token"):
            sampler.choose(row(1, 2, 3), mask=np.zeros(3, dtype=bool))
        with pytest.raises(InvalidArgument, match="mask shape"):
            sampler.choose(row(1, 2, 3), mask=np.ones(4, dtype=bool))
        assert sampler.n_drawn == 0
        sampler.choose(row(1, 2, 3), mask=np.ones(3, dtype=bool))


def test_a_chain_that_filters_nothing_equals_the_plain_sampler_bit_for_bit():
    logits = np.random.default_rng(3).standard_normal((50, 400)).astype(np.float32) * 3
    plain_sampler, chained = Sampler(BASE, 400), Sampler(replace(BASE, top_k=400), 400)
    for one in logits:
        left, right = plain_sampler.choose(one), chained.choose(one)
        assert (left.token, left.log_p_sampler) == (right.token, right.log_p_sampler)
        assert left.sampler_version != right.sampler_version


def test_both_log_probabilities_come_from_their_own_distribution():
    config = replace(BASE, top_k=2, temperature=0.5)
    logits = row(0, math.log(3), math.log(2), math.log(4))
    sampler = Sampler(config, 4)
    chosen = {s.token: s for s in (sampler.choose(logits, (), None, True) for _ in range(60))}
    assert set(chosen) == {1, 3}
    assert chosen[1].log_p_sampler == pytest.approx(math.log(9 / 25), abs=1e-6)
    assert chosen[1].log_p_model == pytest.approx(math.log(3 / 10), abs=1e-6)
    assert chosen[3].log_p_model == pytest.approx(math.log(4 / 10), abs=1e-6)


def test_inputs_are_not_touched():
    logits = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    history, mask = np.arange(20, dtype=np.int32), np.arange(64) % 3 > 0
    before = logits.copy(), history.copy(), mask.copy()
    config = replace(BASE, top_k=9, top_p=0.9, min_p=0.1, repeat_penalty=1.5)
    Sampler(config, 64).choose(logits, history, mask, with_log_p_model=True)
    for array, copy in zip((logits, history, mask), before, strict=True):
        assert np.array_equal(array, copy)


@pytest.mark.parametrize("n_vocab", [49_152, 248_320])
def test_host_defaults_at_full_vocabularies(n_vocab):
    logits = (np.random.default_rng(n_vocab).standard_normal(n_vocab) * 3).astype(np.float32)
    config = replace(BASE, top_k=40, top_p=0.95, min_p=0.05, temperature=0.8)
    sampler = Sampler(config, n_vocab)
    for draw in range(5):
        u = rng.uniform(rng.word(5, draw))
        assert sampler.choose(logits).token == model_choice(logits, config, (), None, u)[0]
