"""Protects `add_rmsnorm_bf16`: the bits of `add_rmsnorm`, rounded once; odd widths, rows alone."""

import numpy as np
import pytest

from ptx.add_rmsnorm.op import OP as ADD_RMSNORM
from ptx.add_rmsnorm_bf16.op import OP
from ptx.numerics import round_to_bf16

PER_TOKEN = ("x", "h")
SHAPES = [(1, 1), (3, 31), (5, 65), (2, 4), (3, 128), (2, 132), (1, 2564), (2, 5120)]


def _inputs(n_tokens, d_model, offset=0.0):
    rng = np.random.default_rng(n_tokens)
    given = {name: 3 * rng.standard_normal((n_tokens, d_model)) for name in PER_TOKEN}
    return {**given, "w": rng.standard_normal(d_model), "eps": 1e-5, "offset": offset}


@pytest.mark.parametrize(("n_tokens", "d_model"), [*SHAPES, (33, 577), (2, 9001)])
def test_against_float64(bench, n_tokens, d_model):
    bench.check(OP, **_inputs(n_tokens, d_model, 1.0))


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, PER_TOKEN, **_inputs(19, 577))


def _check_bits(bench, inputs):
    """What the float32 op gives, rounded by itself; nothing else is written."""
    got, want = bench.run(OP, **inputs), bench.run(ADD_RMSNORM, **inputs)
    assert got["y"].tobytes() == round_to_bf16(want["y"]).tobytes()
    assert set(got) == set(want)
    assert all(got[name].tobytes() == want[name].tobytes() for name in want if name != "y")


def test_bits_are_those_of_float32_rounded(bench):
    _check_bits(bench, _inputs(3, 577))


@pytest.mark.parametrize(("n_tokens", "d_model"), SHAPES)
def test_kernels(kernels, n_tokens, d_model):
    inputs = _inputs(n_tokens, d_model, 1.0)
    for bench in kernels(OP, **inputs):
        bench.check(OP, **inputs)
        _check_bits(bench, inputs)


@pytest.mark.parametrize("d_model", [65, 132])
def test_kernels_rows_alone(kernels, d_model):
    inputs = _inputs(4, d_model)
    for bench in kernels(OP, **inputs):
        bench.check_rows_alone(OP, PER_TOKEN, **inputs)
