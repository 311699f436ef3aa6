"""Protects `linear_add`: it adds to h what `linear` computes, row by row."""

import numpy as np
import pytest

from ptx.linear.op import OP as LINEAR
from ptx.linear_add.op import OP
from ptx.linear_cases import PLAIN, f32_inputs

SHAPES = [(1, 1, 1), (1, 576, 1536), (3, 1, 65), (5, 63, 1), (17, 65, 63), (64, 577, 129)]


def _inputs(n_tokens, n_out, n_in):
    rng = np.random.default_rng(n_tokens + n_out)
    return {
        "x": rng.standard_normal((n_tokens, n_in)),
        "w": rng.standard_normal((n_out, n_in)),
        "h": rng.standard_normal((n_tokens, n_out)),
    }


@pytest.mark.parametrize(("n_tokens", "n_out", "n_in"), SHAPES)
def test_against_float64(bench, n_tokens, n_out, n_in):
    bench.check(OP, **_inputs(n_tokens, n_out, n_in))


@pytest.mark.parametrize(("n_out", "n_in"), [(1, 65), (5, 577), (576, 576), (577, 1536)])
def test_rows_do_not_depend_on_the_batch(bench, n_out, n_in):
    bench.check_rows_alone(OP, ("x", "h"), **_inputs(33, n_out, n_in))


def test_from_zero_it_is_linear(bench):
    inputs = _inputs(5, 65, 129)
    inputs["h"] = np.zeros((5, 65))
    y = bench.run(LINEAR, x=inputs["x"], w=inputs["w"])["y"]
    assert bench.run(OP, **inputs)["h"].tobytes() == y.tobytes()


def test_values_by_hand(bench):
    h = bench.run(OP, x=[[1, 2]], w=[[1, 1], [0, 10]], h=[[0.5, -20]])["h"]
    assert h.tolist() == [[3.5, 0]]


@pytest.mark.parametrize("shape", PLAIN, ids=str)
def test_kernels(kernels, shape):
    h = np.random.default_rng(1).standard_normal(shape[:2])
    for bench in kernels(OP):
        bench.check(OP, **f32_inputs(*shape), h=h)


def test_kernels_rows_alone(kernels):
    h = np.random.default_rng(1).standard_normal((4, 9))
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("x", "h"), **f32_inputs(4, 9, 65), h=h)
