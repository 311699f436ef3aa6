"""Owns the proof of `host-binary64-cdf-1`: frozen words, mathematics, and frequencies.

Expectations are worked by hand or computed here with `math`, never with the sampler's own helpers.
"""

import math
import warnings

import numpy as np
import pytest

from engine.errors import InvalidArgument, RuntimeFailure
from engine.sampling import Sampler, SamplingConfig, plain, rng

LARGEST_U = 1.0 - 2.0**-53

WORDS = {
    0: "e220a8397b1dcdaf 6e789e6aa1b965f4 06c45d188009454f f88bb8a8724c81ec",
    1: "910a2dec89025cc1 beeb8da1658eec67 f893a2eefb32555e 71c18690ee42c90b",
    42: "bdd732262feb6e95 28efe333b266f103 47526757130f9f52 581ce1ff0e4ae394",
    0xDEADBEEFCAFEBABE: "0d7d93560d1929d2 491dfb740e50d43f 42722bf4473e5e7d d6ca8a0790fffc45",
    2**64 - 1: "e4d971771b652c20 e99ff867dbf682c9 382ff84cb27281e9 6d1db36ccba982d2",
}


@pytest.fixture(autouse=True)
def _warnings_fail():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def row(*logits):
    return np.array(logits, dtype=np.float32)


def drawn(logits, temperature, u):
    return plain.draw(np.array(logits, dtype=np.float64), temperature, u)


def scan(logits, temperature, u):
    """An independent A5: a Python loop over math.exp."""
    weights = [math.exp((z - max(logits)) / temperature) for z in logits]
    total = 0.0
    for weight in weights:
        total += weight
    reached = 0.0
    for token, weight in enumerate(weights):
        reached += weight
        if weight > 0.0 and reached > u * total:
            return token
    raise AssertionError("no token reached")


@pytest.mark.parametrize("seed", WORDS)
def test_words_are_the_frozen_ones(seed):
    assert " ".join(f"{rng.word(seed, index):016x}" for index in range(4)) == WORDS[seed]


@pytest.mark.parametrize(
    ("word", "u"),
    [
        (0, 0.0),
        (2**64 - 1, LARGEST_U),
        (0x0008000000000000, 2.0**-13),
        (rng.word(0, 0), 0.8833108082136426),
    ],
)
def test_uniform_is_the_top_53_bits(word, u):
    assert rng.uniform(word) == u


@pytest.mark.parametrize(
    ("logits", "temperature", "u", "token"),
    [
        ([0.0, math.log(3)], 1.0, 0.2, 0),
        ([0.0, math.log(3)], 1.0, 0.3, 1),
        ([0.0, math.log(3)], 0.5, 0.09, 0),
        ([0.0, math.log(3)], 0.5, 0.11, 1),
        ([2.0] * 4, 1.0, 0.0, 0),
        ([2.0] * 4, 1.0, 0.25, 1),
        ([2.0] * 4, 1.0, 0.5, 2),
        ([2.0] * 4, 1.0, 0.75, 3),
        ([2.0] * 4, 1.0, 0.99, 3),
        ([0.0, 0.0, -1000.0], 1.0, LARGEST_U, 1),
        ([0.0, -50.0, -200.0], 0.001, 0.999999, 0),
        ([-1000.0, 0.0, 0.0], 1.0, 0.0, 1),
        ([-1000.0, 0.0, -1000.0, 0.0, -1000.0], 1.0, 0.5, 3),
    ],
)
def test_worked_values(logits, temperature, u, token):
    assert drawn(logits, temperature, u)[0] == token


def test_worked_probabilities():
    assert drawn([0.0, math.log(3)], 1.0, 0.1)[1] == pytest.approx(math.log(1 / 4), abs=1e-15)
    assert drawn([0.0, math.log(3)], 0.5, 0.5)[1] == pytest.approx(math.log(9 / 10), abs=1e-15)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_a_grid_of_u_agrees_with_an_independent_scan(temperature):
    logits = (np.random.default_rng(11).standard_normal(37) * 1.5).tolist()
    tokens = [drawn(logits, temperature, k / 1000)[0] for k in range(1000)]
    assert tokens == [scan(logits, temperature, k / 1000) for k in range(1000)]
    assert tokens == sorted(tokens)
    assert len(set(tokens)) > 5


@pytest.mark.parametrize("offset", [0.0, -60.0])
def test_log_probabilities_agree_with_an_independent_log_sum_exp(offset):
    logits = (np.random.default_rng(5).standard_normal(501) * 6 + offset).astype(np.float32)
    z = [float(value) for value in logits]
    for temperature in (0.3, 1.0, 2.5):
        lse = math.log(math.fsum(math.exp((v - max(z)) / temperature) for v in z))
        for u in (0.01, 0.4, 0.97):
            token, log_p = drawn(z, temperature, u)
            assert abs(log_p - ((z[token] - max(z)) / temperature - lse)) < 1e-12


def test_log_p_model_ignores_the_temperature():
    logits = row(0.0, 1.0, 3.0, 2.0)
    config = SamplingConfig(version=1, flags=1, seed=3, temperature=4.0)
    sampler = Sampler(config, 4)
    chosen = [sampler.choose(logits, with_log_p_model=True) for _ in range(40)]
    lse = math.log(sum(math.exp(z) for z in (0, 1, 3, 2)))
    off_peak = [selection for selection in chosen if selection.token != 2]
    assert off_peak
    for selection in off_peak:
        assert abs(selection.log_p_model - (float(logits[selection.token]) - lse)) < 1e-12
        assert abs(selection.log_p_model - selection.log_p_sampler) > 0.01


def test_greedy_records_certainty_and_the_softmax_of_its_choice():
    selection = Sampler(None, 4).choose(row(1, 5, 5, 2), with_log_p_model=True)
    lse = math.log(sum(math.exp(z) for z in (1, 5, 5, 2)))
    assert (selection.token, selection.log_p_sampler) == (1, 0.0)
    assert abs(selection.log_p_model - (5 - lse)) < 1e-12
    assert Sampler(None, 4).choose(row(1, 5, 5, 2)).log_p_model is None


def test_representable_shifts_change_nothing():
    logits = np.random.default_rng(2).integers(-64, 64, 50) / 8.0
    for shift in (1024.0, -4096.0):
        for k in range(100):
            assert drawn(logits + shift, 0.7, k / 100) == drawn(logits, 0.7, k / 100)


def test_low_temperature_sharpens_and_high_temperature_flattens():
    best = [drawn([0.0, 1.0], t, 0.999)[1] for t in (0.1, 1.0, 10.0, 1e6)]
    assert best == sorted(best, reverse=True)
    assert best[-1] == pytest.approx(math.log(0.5), abs=1e-6)


@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-45, 5e-324])
def test_a_tiny_temperature_gives_the_best_token(temperature):
    logits = [3.4e38, -3.4e38, 1.0, 3.3e38]
    assert {drawn(logits, temperature, u)[0] for u in (0.0, 0.5, LARGEST_U)} == {0}
    assert drawn([1.0, 1.0 + 2**-10], temperature, 0.0) == (1, 0.0)


@pytest.mark.parametrize("u", [-1e-9, 1.0, math.nan, math.inf])
def test_u_outside_its_interval_is_refused(u):
    with pytest.raises(InvalidArgument, match="0 <= u < 1"):
        drawn([0.0, 1.0], 1.0, u)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [0, 2, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_a_bad_logit_draws_nothing(bad, index, temperature):
    sampler = Sampler(SamplingConfig(version=1, flags=1, seed=9, temperature=temperature), 5)
    logits = row(0, 1, 2, 3, 4)
    logits[index] = bad
    with pytest.raises(RuntimeFailure, match=f"token {index} of 5"):
        sampler.choose(logits)
    assert sampler.n_drawn == 0
    assert sampler.choose(row(0, 0, 9, 0, 0)) == Sampler(sampler.config, 5).choose(
        row(0, 0, 9, 0, 0)
    )


@pytest.mark.parametrize("shape", [(0,), (4,), (6,), (1, 5), ()])
def test_a_row_of_another_shape_is_refused(shape):
    with pytest.raises(InvalidArgument, match="needs \\[5\\]"):
        Sampler(None, 5).choose(np.zeros(shape, dtype=np.float32))


@pytest.mark.parametrize(
    ("logits", "temperature", "seed"),
    [
        ([0.0, math.log(3), -1.0, 0.5], 1.0, 1),
        ([0.0, math.log(3), -1.0, 0.5], 0.5, 42),
        ([1.0, 1.0, 1.0], 2.0, 2**64 - 1),
    ],
)
def test_frequencies_of_200_000_draws(logits, temperature, seed):
    config = SamplingConfig(version=1, flags=1, temperature=temperature)
    sampler = Sampler(config, len(logits), seed=seed)
    logits = row(*logits)
    counts = [0] * len(logits)
    for _ in range(200_000):
        counts[sampler.choose(logits).token] += 1
    weights = [math.exp(float(z) / temperature) for z in logits]
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count / 200_000 - weight / sum(weights)) <= 0.01


def test_the_numerics_text_is_stable_and_names_numpy():
    assert plain.numerics() == plain.numerics()
    assert plain.numerics().startswith(f"numpy {np.__version__} exp ")
