"""Protects `sigmoid_gate`: the formula over the whole range, silent overflow, row invariance."""

import math
import warnings

import numpy as np
import pytest

from ptx.sigmoid_gate.op import OP
from ptx.sigmoid_gate.ref import sigmoid_gate


def _inputs(n_tokens, n_columns):
    rng = np.random.default_rng(n_tokens)
    gate, x = rng.standard_normal((2, n_tokens, n_columns))
    return {"gate": 5 * gate, "x": x}


@pytest.mark.parametrize(("n_tokens", "n_columns"), [(1, 1), (1, 6144), (3, 63), (33, 577)])
def test_against_float64(bench, n_tokens, n_columns):
    bench.check(OP, **_inputs(n_tokens, n_columns))


@pytest.mark.parametrize("n_columns", [1, 7, 16, 192, 577])
def test_rows_do_not_depend_on_the_batch(bench, n_columns):
    bench.check_rows_alone(OP, ("gate", "x"), **_inputs(19, n_columns))


def test_values_by_hand(bench):
    x = bench.run(OP, gate=[[0, math.log(3), -math.log(3)]], x=[[4, 4, 4]])["x"]
    assert x[0] == pytest.approx([2, 3, 1])


def test_heads_fold_into_columns(bench):
    inputs = {name: array.reshape(3, 4, 6) for name, array in _inputs(3, 24).items()}
    assert bench.run(OP, **inputs)["x"].tobytes() == bench.run(OP, **_inputs(3, 24))["x"].tobytes()


def test_far_ends_are_silent_and_right():
    gate = np.array([[-3e38, -1000, -90, 0, 90, 1000, 1e38]], np.float32)
    x = np.full_like(gate, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sigmoid_gate(gate, x)
    assert x[0] == pytest.approx([0, 0, 0, 1, 2, 2, 2], abs=1e-36)


def test_small_gates_keep_their_digits(bench):
    gate = np.linspace(-87, -60, 200)[None]
    x = bench.run(OP, gate=gate, x=np.ones((1, 200)))["x"]
    assert x == pytest.approx(1 / (1 + np.exp(-gate.astype(np.float32).astype(float))), rel=1e-6)


@pytest.mark.parametrize(("n_tokens", "n_columns"), [(1, 1), (3, 63), (2, 577)])
def test_kernels(kernels, n_tokens, n_columns):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(n_tokens, n_columns))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("gate", "x"), **_inputs(4, 65))


def test_kernels_over_the_whole_range(kernels):
    # Each gate alone in its row, so that a large neighbour cannot hide its error.
    gate = np.concatenate([np.linspace(-86, 20, 4000), [-1e-30, 1e-30, 0.5, 88, 1e4, 1e38]])
    gate = gate[:, None].astype(np.float32)
    x = np.random.default_rng(1).uniform(1, 2, gate.shape).astype(np.float32)
    want = x.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64)))
    for bench in kernels(OP):
        got = bench.run(OP, gate=gate, x=x)["x"]
        assert np.max(np.abs(got - want) / want) < 2e-7


def test_far_ends_of_kernels(kernels):
    gate = np.array([[-3e38, -1000, -90, -0.0, 1000, np.nan]], np.float32)
    for bench in kernels(OP):
        x = bench.run(OP, gate=gate, x=np.full_like(gate, 2))["x"][0]
        assert x[:5] == pytest.approx([0, 0, 2 * math.exp(-90), 1, 2], rel=1e-4, abs=1e-44)
        assert np.isnan(x[5])
