"""Owns the proof that each hostile sampling field is refused by name or has its limit.

Past 250 lines because the table of fields and the behaviour it promises are read together.
"""

import math
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.errors import EngineError, InvalidArgument, RuntimeFailure
from engine.sampling import Sampler, SamplingConfig

N_VOCAB = 300
NAN, INF = math.nan, math.inf
BASE = SamplingConfig(version=1, flags=1, seed=5, temperature=1.0)
# Falling with the id, so the best token is 0 and the best 256 are the first 256.
LOGITS = np.linspace(8.0, -8.0, N_VOCAB, dtype=np.float32)


@pytest.fixture(autouse=True)
def _warnings_fail():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def tokens(config, n_tokens=30, history=()):
    sampler = Sampler(config, N_VOCAB)
    return [sampler.choose(LOGITS, history).token for _ in range(n_tokens)]


REFUSED = [
    ({"version": 2}, "version is 2"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 2**32}, "seed is 4294967296"),
    ({"penalty_last_n": -2}, "penalty_last_n is -2"),
    ({"temperature": NAN}, "temperature is nan"),
    ({"temperature": INF}, "temperature is inf"),
    ({"temperature": -INF}, "temperature is -inf"),
    ({"top_p": NAN}, "top_p is nan"),
    ({"top_p": INF}, "top_p is inf"),
    ({"min_p": NAN}, "min_p is nan"),
    ({"presence_penalty": NAN}, "presence_penalty is nan"),
    ({"frequency_penalty": -INF}, "frequency_penalty is -inf"),
    ({"repeat_penalty": NAN}, "repeat_penalty is nan"),
    ({"repeat_penalty": INF}, "repeat_penalty is inf"),
    ({"repeat_penalty": -2.0}, "repeat_penalty is -2.0"),
    ({"logit_bias": ((0, 0.0), (-1, 1.0))}, r"logit_bias\[1\].token is -1"),
    ({"logit_bias": ((N_VOCAB, 1.0),)}, r"logit_bias\[0\].token is 300"),
    ({"logit_bias": ((2**31 - 1, 1.0),)}, r"logit_bias\[0\].token is 2147483647"),
    ({"logit_bias": ((-(2**31), 1.0),)}, r"logit_bias\[0\].token is -2147483648"),
    ({"logit_bias": ((7, NAN),)}, r"logit_bias\[0\].bias is nan"),
    ({"logit_bias": ((7, INF), (7, INF))}, r"logit_bias\[0\].bias is inf"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_refusal_names_field_and_value(fields, message):
    with pytest.raises(InvalidArgument, match=message):
        Sampler(replace(BASE, **fields), N_VOCAB)


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("off", [{"flags": 0}, {"version": 0}], ids=str)
def test_a_greedy_config_is_not_looked_at(fields, message, off):
    sampler = Sampler(replace(BASE, **{**fields, **off}), N_VOCAB)
    assert sampler.choose(LOGITS[::-1].copy()).token == N_VOCAB - 1
    assert sampler.n_drawn == 0


NO_EFFECT = [
    {"top_k": N_VOCAB},
    {"top_k": N_VOCAB + 1},
    {"top_k": 2**31 - 1},
    {"top_k": -5},
    {"top_p": 0.0},
    {"top_p": 1.0},
    {"top_p": -3.0},
    {"top_p": 2.0},
    {"min_p": 1.0},
    {"min_p": 0.0},
    {"repeat_penalty": 0.0},
    {"repeat_penalty": 1.0},
    {"logit_bias": ((3, 0.0),)},
    {"flags": 2},
    {"flags": 0xFFFFFFFF},
    {"penalty_last_n": 2**31 - 1},
]


@pytest.mark.parametrize("fields", NO_EFFECT, ids=str)
def test_a_limit_without_effect_gives_the_plain_tokens(fields):
    assert tokens(replace(BASE, **fields), history=[1, 2, 3]) == tokens(BASE)


def test_only_a_field_that_takes_part_leaves_the_plain_sampler():
    def version(**fields):
        return Sampler(replace(BASE, **fields), N_VOCAB).choose(LOGITS).sampler_version

    neutral = {"top_k": 0, "top_p": 0.0, "min_p": 1.0, "repeat_penalty": 0.0}
    assert version() == version(**neutral) == "host-binary64-cdf-1"
    for fields in (
        {"top_k": 1},
        {"top_p": 0.5},
        {"min_p": 0.5},
        {"repeat_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": ((0, 0.0),)},
    ):
        assert version(**fields) == "host-binary64-chain-1"


BEST_ONLY = [
    {"temperature": 1e-6},
    {"temperature": 1e-38},
    {"temperature": float(np.float32(1e-45))},
    {"temperature": 0.0},
    {"temperature": -0.0},
    {"temperature": -1.0},
    {"top_k": 1},
    {"top_p": 1e-30},
    {"top_p": float(np.float32(1e-45))},
    {"min_p": float(np.nextafter(np.float32(1), np.float32(0)))},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 1e-38},
]


@pytest.mark.parametrize("fields", BEST_ONLY, ids=str)
def test_a_limit_that_leaves_the_best_token(fields):
    assert tokens(replace(BASE, **fields)) == [0] * 30


def test_extreme_penalties_and_biases_stay_finite_arithmetic():
    huge, tiny = float(np.finfo(np.float32).max), float(np.float32(1e-45))
    for fields in (
        {"repeat_penalty": huge},
        {"repeat_penalty": tiny},
        {"presence_penalty": huge, "frequency_penalty": huge},
        {"presence_penalty": -huge, "frequency_penalty": -huge},
        {"logit_bias": ((4, huge), (4, huge))},
        {"logit_bias": ((0, -huge),) * 256},
    ):
        chosen = tokens(replace(BASE, **fields), history=[4] * 50)
        assert all(0 <= token < N_VOCAB for token in chosen)
    assert tokens(replace(BASE, logit_bias=((4, huge), (4, huge)))) == [4] * 30


def test_duplicate_biases_add_up():
    twice = replace(BASE, logit_bias=((9, 3.0), (9, 4.0)))
    assert tokens(twice, 200) == tokens(replace(BASE, logit_bias=((9, 7.0),)), 200)
    banned = replace(BASE, logit_bias=((0, -INF), (0, 50.0)))
    assert 0 not in tokens(banned, 200)


def test_minus_infinity_on_the_best_256_leaves_the_rest():
    bans = replace(BASE, logit_bias=tuple((token, -INF) for token in range(256)))
    assert min(tokens(bans, 200)) >= 256
    assert tokens(replace(bans, temperature=0.0)) == [256] * 30
    assert tokens(replace(bans, top_k=1)) == [256] * 30


def test_only_the_first_256_biases_count():
    bans = tuple((token, -INF) for token in range(N_VOCAB))
    assert replace(BASE, logit_bias=bans) == replace(BASE, logit_bias=bans[:256])
    invalid_tail = (*bans[:256], (-1, NAN))
    assert min(tokens(replace(BASE, logit_bias=invalid_tail))) >= 256


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 40])
def test_everything_banned_is_a_failure_that_draws_nothing(temperature, top_k):
    bans = tuple((token, -INF) for token in range(5))
    config = replace(BASE, temperature=temperature, top_k=top_k, logit_bias=bans)
    sampler = Sampler(config, 5)
    for _ in range(2):
        with pytest.raises(RuntimeFailure, match="ban every token"):
            sampler.choose(np.zeros(5, dtype=np.float32))
    assert sampler.n_drawn == 0


def test_the_largest_seed_is_ordinary_and_zero_is_the_system():
    largest = replace(BASE, seed=2**32 - 1)
    assert tokens(largest) == tokens(largest)
    assert Sampler(largest, N_VOCAB).seed == 2**32 - 1
    seeds = {Sampler(replace(BASE, seed=0), N_VOCAB).seed for _ in range(8)}
    assert len(seeds) == 8
    assert max(seeds) >= 2**32


def test_seed_zero_differs_between_processes():
    program = (
        "from engine.sampling import Sampler, SamplingConfig\n"
        "print(Sampler(SamplingConfig(version=1, flags=1), 4).seed)"
    )
    root = Path(__file__).resolve().parents[2]
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    assert runs[0].stdout != runs[1].stdout
    assert [run.stderr for run in runs] == ["", ""]


def test_the_system_seed_is_eight_bytes_or_an_error(monkeypatch):
    asked = []

    def source(n_bytes):
        asked.append(n_bytes)
        return bytes(range(1, n_bytes + 1))

    monkeypatch.setattr(os, "urandom", source)
    assert Sampler(replace(BASE, seed=0), N_VOCAB).seed == 0x0807060504030201
    assert asked == [8]
    # No entropy is touched where no word will be drawn.
    Sampler(None, N_VOCAB)
    Sampler(replace(BASE, seed=0, temperature=0.0), N_VOCAB)
    Sampler(replace(BASE, seed=0, flags=0), N_VOCAB)
    Sampler(replace(BASE, seed=0), N_VOCAB, seed=0)
    assert asked == [8]
    monkeypatch.setattr(os, "urandom", lambda n_bytes: b"short")
    with pytest.raises(RuntimeFailure, match="5 bytes of 8"):
        Sampler(replace(BASE, seed=0), N_VOCAB)


def test_an_explicit_seed_has_64_bits():
    sampler = Sampler(BASE, N_VOCAB, seed=0)
    assert sampler.seed == 0
    assert Sampler(BASE, N_VOCAB, seed=2**64 - 1).seed == 2**64 - 1
    for seed in (-1, 2**64):
        with pytest.raises(InvalidArgument, match="seed"):
            Sampler(BASE, N_VOCAB, seed=seed)
    assert Sampler(replace(BASE, temperature=0.0), N_VOCAB, seed=4).seed is None


def test_a_good_step_after_every_refusal_equals_a_clean_run():
    for fields, _ in REFUSED:
        with pytest.raises(EngineError):
            Sampler(replace(BASE, **fields), N_VOCAB)
    assert tokens(BASE) == tokens(replace(BASE))
