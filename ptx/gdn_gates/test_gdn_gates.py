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


@pytest.mark.parametrize(("n_tokens", "n_value_heads"), [(1, 1), (1, 48), (3, 6), (5, 65)])
def test_kernels(kernels, n_tokens, n_value_heads):
    inputs = _inputs(n_tokens, n_value_heads)
    for bench in kernels(OP):
        bench.check(OP, **inputs)
        # On outputs that nobody wrote before, too.
        bench.run_bare(OP, **{n: array for n, array in inputs.items() if n not in ("g", "beta")})


def test_kernels_rows_alone(kernels):
    inputs = _inputs(4, 65)
    del inputs["g"], inputs["beta"]
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("a", "b"), **inputs)


def test_kernels_over_the_whole_range(kernels):
    # Each cell by itself, so that a large neighbour cannot hide its error.
    a = np.concatenate([np.linspace(-87, 20, 4000), [-1e-30, 1e-30, 0.5, 88, 1e4, 1e30]])
    a = np.repeat(a[:, None], 5, axis=1).astype(np.float32)
    a_log = np.array([-10, -1, 0, 3, 17], np.float32)
    wide = a.astype(np.float64)
    want_g = -np.exp(a_log.astype(np.float64)) * np.logaddexp(0, wide)
    want_beta = 1 / (1 + np.exp(-wide))
    normal = np.abs(want_g) >= np.finfo(np.float32).tiny
    for bench in kernels(OP):
        got = bench.run(OP, a=a, b=a, a_log=a_log, dt_bias=np.zeros(5))
        assert np.max(np.abs(got["g"] - want_g)[normal] / np.abs(want_g)[normal]) < 4e-7
        assert np.max(np.abs(got["beta"] - want_beta) / want_beta) < 2e-7


def test_far_ends_of_kernels(kernels):
    a = np.array([[-1e30, -1000, -80, -40, 0, 25, 1000, 1e30, np.nan]], np.float32)
    zero = np.zeros(9)
    small, middle = math.exp(-80), math.exp(-40)
    want_g = [0, 0, small, middle, math.log(2), 25, 1000, 1e30]
    want_beta = [0, 0, small, middle, 0.5, 1, 1, 1]
    for bench in kernels(OP):
        got = bench.run(OP, a=a, b=a, a_log=zero, dt_bias=zero)
        assert -got["g"][0, :8] == pytest.approx(want_g, rel=1e-6, abs=1e-40)
        assert got["beta"][0, :8] == pytest.approx(want_beta, rel=1e-6, abs=1e-40)
        assert np.isnan([got["g"][0, 8], got["beta"][0, 8]]).all()
        # A rate past float32 is infinite, not some number.
        got = bench.run(OP, a=a[:, :3], b=a[:, :3], a_log=[89, 200, np.inf], dt_bias=[3e30] * 3)
        assert np.isneginf(got["g"]).all()
        test_values_by_hand(bench)
