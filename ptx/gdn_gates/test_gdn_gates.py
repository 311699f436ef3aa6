"""Protects `gdn_gates`: both formulas over the whole range, the sign of g, row invariance."""

import math
import warnings

import numpy as np
import pytest

from ptx.gdn_gates.op import OP
from ptx.gdn_gates.ref import gdn_gates


def _inputs(n_tokens, n_value_heads):
    rng = np.random.default_rng(n_tokens)
    a, b = 4 * rng.standard_normal((2, n_tokens, n_value_heads))
    nothing = np.full((n_tokens, n_value_heads), np.nan)
    return {
        "a": a,
        "b": b,
        "a_log": rng.uniform(-4, 1, n_value_heads),
        "dt_bias": rng.uniform(-0.5, 1.5, n_value_heads),
        "g": nothing,
        "beta": nothing,
    }


@pytest.mark.parametrize(("n_tokens", "n_value_heads"), [(1, 1), (1, 48), (3, 6), (65, 63)])
def test_against_float64(bench, n_tokens, n_value_heads):
    bench.check(OP, **_inputs(n_tokens, n_value_heads))


def test_against_a_plain_loop(bench):
    inputs = _inputs(5, 7)
    got = bench.run(OP, **inputs)
    for t in range(5):
        for j in range(7):
            softplus = math.log(1 + math.exp(inputs["a"][t, j] + inputs["dt_bias"][j]))
            want_g = -math.exp(inputs["a_log"][j]) * softplus
            assert got["g"][t, j] == pytest.approx(want_g, rel=2e-6)
            assert got["beta"][t, j] == pytest.approx(
                1 / (1 + math.exp(-inputs["b"][t, j])), rel=1e-6
            )


@pytest.mark.parametrize("n_value_heads", [1, 6, 48, 65])
def test_rows_do_not_depend_on_the_batch(bench, n_value_heads):
    inputs = _inputs(19, n_value_heads)
    del inputs["g"], inputs["beta"]
    bench.check_rows_alone(OP, ("a", "b"), **inputs)


def test_values_by_hand(bench):
    # softplus(ln 3 - ln 1.5) = ln 3, and exp(ln 2) = 2.
    got = bench.run(
        OP, a=[[math.log(3)]], b=[[math.log(3)]], a_log=[math.log(2)], dt_bias=[-math.log(1.5)]
    )
    assert got["g"].item() == pytest.approx(-2 * math.log(3))
    assert got["beta"].item() == pytest.approx(0.75)


def test_far_ends_are_silent_and_right():
    a = np.array([[-1e30, -1000, -80, -40, 0, 25, 1000, 1e30]], np.float32)
    g, beta = np.empty_like(a), np.empty_like(a)
    zero = np.zeros(8, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gdn_gates(a, a, zero, zero, g, beta)
    small, middle = math.exp(-80), math.exp(-40)
    want = [0, 0, small, middle, math.log(2), 25, 1000, 1e30]
    assert -g[0] == pytest.approx(want, rel=1e-6, abs=1e-40)
    assert beta[0] == pytest.approx([0, 0, small, middle, 0.5, 1, 1, 1], rel=1e-6, abs=1e-40)


def test_a_decay_is_never_a_growth(bench):
    inputs = _inputs(65, 63)
    inputs["a"] = 40 * inputs["a"]
    assert (bench.run(OP, **inputs)["g"] <= 0).all()
