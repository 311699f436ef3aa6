"""Owns the proof of the n-gram cache: counting tables kept in the test judge every draft."""

import random
from collections import Counter, defaultdict

import numpy as np
import pytest

from engine.errors import InvalidArgument
from engine.ngram import NgramCache

LEAST = {1: 2, 2: 2, 3: 1, 4: 1}
PERCENT = {1: 66, 2: 50, 3: 50, 4: 50}


def model_draft(history, prefix, n_most, ngram_min, ngram_max):
    """Counts every n-gram of `history` in dictionaries, then looks drafts up in them."""
    followers = defaultdict(Counter)
    for length in range(ngram_min, ngram_max + 1):
        for end in range(length, len(history)):
            followers[tuple(history[end - length : end])][history[end]] += 1
    text = [*history, *prefix]
    drafted = []
    while history and len(drafted) < n_most:
        for length in range(ngram_max, ngram_min - 1, -1):
            seen = followers.get(tuple(text[-length:])) if length <= len(text) else None
            if not seen or sum(seen.values()) < LEAST[length]:
                continue
            token, count = min(seen.items(), key=lambda item: (-item[1], item[0]))
            if 100 * count >= PERCENT[length] * sum(seen.values()):
                break
        else:
            return drafted
        drafted.append(token)
        text.append(token)
    return drafted


@pytest.mark.parametrize(
    ("ngram_min", "ngram_max"), [(a, b) for b in range(1, 5) for a in range(1, b + 1)]
)
def test_random_histories_agree_with_the_counting_model(ngram_min, ngram_max):
    source = random.Random(10 * ngram_min + ngram_max)
    n_drafted = 0
    for _ in range(150):
        n_ids = source.choice([1, 2, 3, 8])
        cache, history = NgramCache(ngram_min, ngram_max), []
        for _ in range(source.randint(1, 6)):
            piece = [source.randrange(n_ids) - 1 for _ in range(source.randint(0, 20))]
            if source.random() < 0.2:
                cache.reset(piece)
                history = piece
            else:
                cache.append(np.array(piece, dtype=np.int32) if source.random() < 0.5 else piece)
                history = history + piece
            prefix = [source.randrange(n_ids) - 1 for _ in range(source.choice([0, 1, 2, 6]))]
            drafted = cache.draft(prefix, 7)
            assert drafted == model_draft(history, prefix, 7, ngram_min, ngram_max)
            assert len(cache) == len(history)
            n_drafted += len(drafted)
    assert n_drafted > 100


@pytest.mark.parametrize("lengths", [(0, 1), (2, 1), (1, 5), (0, 0), (5, 5), (65535, 65535)])
def test_lengths_outside_one_to_four_are_refused(lengths):
    with pytest.raises(InvalidArgument, match="min <= max <= 4"):
        NgramCache(*lengths)


@pytest.mark.parametrize(
    ("lengths", "history", "drafted"),
    [
        # Length 1: two sightings and 66 percent.
        ((1, 1), [5, 6, 5], []),
        ((1, 1), [5, 6, 5, 6, 5], [6]),
        ((1, 1), [5, 6, 5, 7, 5], []),
        ((1, 1), [5, 6, 5, 6, 5, 7, 5], [6]),
        ((1, 1), [5, 6, 5, 6, 5, 6, 5, 7, 5, 8, 5], []),
        # Length 2: two sightings and half of them.
        ((2, 2), [1, 5, 6, 1, 5], []),
        ((2, 2), [1, 5, 6, 1, 5, 7, 1, 5], [6]),
        ((2, 2), [1, 5, 6, 1, 5, 7, 1, 5, 8, 1, 5], []),
        # Lengths 3 and 4: one sighting and half of them.
        ((3, 3), [0, 1, 5, 6, 0, 1, 5], [6]),
        ((3, 3), [0, 1, 5, 6, 0, 1, 5, 7, 0, 1, 5, 8, 0, 1, 5], []),
        ((4, 4), [9, 0, 1, 5, 6, 9, 0, 1, 5], [6]),
        ((4, 4), [9, 0, 1, 5, 8, 9, 0, 1, 5, 6, 9, 0, 1, 5], [6]),
        # A longer n-gram that fails its threshold gives way to a shorter one.
        ((1, 2), [5, 6, 5, 6, 5], [6]),
        # A draft of length 3 needs a context of 3.
        ((3, 4), [5, 5], []),
    ],
)
def test_thresholds_follow_the_real_length_and_ties_the_lowest_id(lengths, history, drafted):
    cache = NgramCache(*lengths)
    cache.append(history)
    assert cache.draft([], 1) == drafted


def test_a_draft_follows_itself_up_to_the_maximum():
    cache = NgramCache(2, 4)
    cache.reset([1, 2, 3, 4, 1, 2, 3, 4, 1, 2])
    assert cache.draft([], 6) == [3, 4, 1, 2, 3, 4]
    assert cache.draft([3], 3) == [4, 1, 2]
    assert cache.draft([99], 3) == []
    assert cache.draft([], 0) == []
    assert len(cache.draft([], 65535)) == 65535


def test_a_draft_changes_nothing():
    cache, untouched = NgramCache(1, 4), NgramCache(1, 4)
    for each in (cache, untouched):
        each.append([1, 2, 3, 1, 2, 3, 1])
    for prefix in ([], [2], [9, 9, 9, 9, 9], [3, 1]):
        cache.draft(prefix, 20)
    for prefix in ([], [2], [3], [9], [1, 2]):
        assert cache.draft(prefix, 9) == untouched.draft(prefix, 9)


def test_an_empty_history_drafts_nothing():
    cache = NgramCache(1, 4)
    assert cache.draft([1, 1, 1, 1], 5) == []
    cache.append([1, 1, 1, 1])
    assert cache.draft([], 2) == [1, 1]
    cache.append([])
    assert cache.draft([], 2) == [1, 1]
    cache.reset([])
    assert (len(cache), cache.draft([1, 1], 5)) == (0, [])


@pytest.mark.parametrize("token", [-1, 0, 2**31 - 1, -(2**31)])
def test_any_int32_is_a_token(token):
    cache = NgramCache(1, 4)
    cache.reset([token, 7, token, 7, token])
    assert cache.draft([], 2) == [7, token]
    assert cache.draft([8], 1) == []


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1, 2**70])
def test_an_id_beyond_int32_is_refused_and_nothing_changes(token):
    cache = NgramCache(1, 2)
    cache.append([4, 4, 4])
    for call in (cache.append, cache.reset, lambda ids: cache.draft(ids, 1)):
        with pytest.raises(InvalidArgument, match="needs int32"):
            call([4, token])
    assert cache.draft([], 1) == [4]


def test_single_appends_equal_one_reset():
    source = random.Random(4)
    history = [source.randrange(6) for _ in range(3000)]
    grown, whole = NgramCache(1, 4), NgramCache(1, 4)
    for token in history:
        grown.append([token])
    whole.reset(history)
    assert grown.draft([], 200) == whole.draft([], 200)
    assert len(grown) == 3000
