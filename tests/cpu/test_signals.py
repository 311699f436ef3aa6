"""Owns the proof of token signals and windows, against exact sums in Python floats."""

import math
import warnings

import numpy as np
import pytest

from engine.errors import InvalidArgument
from engine.sampling import TokenSignal, signal_window, token_signal


@pytest.fixture(autouse=True)
def _warnings_fail():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def row(*logits):
    return np.array(logits, dtype=np.float32)


def signal(entropy=1.0, margin=0.5):
    return TokenSignal(entropy, -1.0, -1.0 - margin, margin, 0, 1)


@pytest.mark.parametrize("n_vocab", [2, 3, 64, 5000])
@pytest.mark.parametrize("spread", [0.0, 0.5, 8.0, 1e4])
def test_signals_agree_with_exact_sums(n_vocab, spread):
    source = np.random.default_rng(n_vocab)
    logits = (source.standard_normal(n_vocab) * spread - 3.0).astype(np.float32)
    z = [float(value) for value in logits]
    log_total = math.log(math.fsum(math.exp(v - max(z)) for v in z))
    log_p = [v - max(z) - log_total for v in z]
    ranked = sorted(range(n_vocab), key=lambda i: (-z[i], i))
    got = token_signal(logits)
    assert (got.top_token, got.second_token) == (ranked[0], ranked[1])
    assert abs(got.entropy - -math.fsum(math.exp(lp) * lp for lp in log_p)) < 1e-11
    assert abs(got.top_logprob - log_p[ranked[0]]) < 1e-12
    assert got.second_logprob == pytest.approx(log_p[ranked[1]], abs=1e-12, rel=1e-15)
    assert got.margin == pytest.approx(z[ranked[0]] - z[ranked[1]], abs=1e-12, rel=1e-15)


def test_worked_signals():
    flat = token_signal(row(2, 2, 2, 2))
    assert flat.entropy == pytest.approx(math.log(4), abs=1e-15)
    assert (flat.margin, flat.top_token, flat.second_token) == (0.0, 0, 1)
    sure = token_signal(row(0, 1e6, -5))
    assert (sure.entropy, sure.top_logprob, sure.margin) == (0.0, 0.0, 1e6)
    assert (sure.top_token, sure.second_token) == (1, 0)


@pytest.mark.parametrize(
    ("logits", "pair"),
    [
        ([5, 5, 1], (0, 1)),
        ([1, 5, 5], (1, 2)),
        ([5, 1, 5], (0, 2)),
        ([3, 9, 3], (1, 0)),
        ([1, 2], (1, 0)),
        ([2, 1], (0, 1)),
        ([0, 3, 1, 2], (1, 3)),
    ],
)
def test_the_two_best_are_the_lowest_ids_of_a_tie(logits, pair):
    got = token_signal(row(*logits))
    assert (got.top_token, got.second_token) == pair


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("token", [0, 1, 2])
def test_a_row_whose_largest_logit_is_not_finite_has_no_signal(bad, token):
    logits = row(1, 2, 3)
    logits[token] = bad
    assert token_signal(logits) is None
    assert token_signal(row(-np.inf, -np.inf)) is None


def test_minus_infinity_below_a_finite_best_counts_as_no_mass():
    got = token_signal(row(1, -np.inf, 1))
    assert got.entropy == pytest.approx(math.log(2), abs=1e-15)
    assert token_signal(row(-np.inf, 4)).margin == math.inf


def test_one_token_has_no_second_best():
    assert token_signal(row(1)) is None


def test_a_window_sums_up_the_last_signals():
    signals = [signal(9.0, 9.0), signal(4.0, 0.5), signal(4.5, 0.25), signal(0.5, 3.0)]
    got = signal_window(signals, [1, 1, 2, 2, 2, 3], 3)
    assert (got.token_count, got.mean_entropy, got.max_entropy) == (3, 3.0, 4.5)
    assert (got.mean_margin, got.min_margin) == (1.25, 0.25)
    # 4.0 itself is not high; of 2, 2, 3 one pair repeats.
    assert (got.high_entropy_count, got.repetition_count) == (1, 1)


@pytest.mark.parametrize(
    ("history", "n_window", "n_repeated"),
    [
        ([], 4, 0),
        ([7], 4, 0),
        ([7, 7], 1, 0),
        ([7, 7], 2, 1),
        ([7, 7, 7, 7], 3, 2),
        ([7, 7, 7, 7], 2**32 - 1, 3),
        ([1, 2, 1, 2], 4, 0),
        ([5, 5, 6, 6, 5, 5], 5, 2),
    ],
)
def test_repetition_counts_equal_neighbours_inside_the_window(history, n_window, n_repeated):
    for given in (history, np.array(history, dtype=np.int32)):
        got = signal_window([signal()], given, n_window)
        assert (got.token_count, got.repetition_count) == (1, n_repeated)


def test_an_empty_window_is_refused():
    with pytest.raises(InvalidArgument, match="0 tokens"):
        signal_window([signal()], [1], 0)
    with pytest.raises(InvalidArgument, match="no token has a signal"):
        signal_window([], [1], 4)
