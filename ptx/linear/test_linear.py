"""Protects `linear`: the product, and that a row's bits never depend on the other rows."""

import numpy as np
import pytest

from ptx.linear.op import OP
from ptx.linear_cases import PLAIN, f32_inputs

# Eight for each of the 65,535 blocks that a grid has along y.
MAX_OUTPUTS = 524_280
SHAPES = [(1, 1, 1), (1, 192, 576), (3, 1, 65), (5, 63, 1), (17, 65, 63), (64, 577, 129)]


def _inputs(n_tokens, n_out, n_in):
    rng = np.random.default_rng(n_tokens + n_out)
    return {"x": rng.standard_normal((n_tokens, n_in)), "w": rng.standard_normal((n_out, n_in))}


@pytest.mark.parametrize(("n_tokens", "n_out", "n_in"), SHAPES)
def test_against_float64(bench, n_tokens, n_out, n_in):
    bench.check(OP, **_inputs(n_tokens, n_out, n_in))


@pytest.mark.parametrize(
    ("n_out", "n_in"), [(1, 65), (2, 3), (5, 577), (192, 576), (576, 576), (577, 1536), (3001, 63)]
)
def test_rows_do_not_depend_on_the_batch(bench, n_out, n_in):
    bench.check_rows_alone(OP, ("x",), **_inputs(33, n_out, n_in))


def test_values_by_hand(bench):
    y = bench.run(OP, x=[[1, 2, 3]], w=[[1, 0, 0], [0, 10, 100]])["y"]
    assert y.tolist() == [[1, 320]]


def test_a_nan_stays_in_its_row(bench):
    x = np.ones((3, 5))
    x[1, 2] = np.nan
    y = bench.run(OP, x=x, w=np.ones((4, 5)))["y"]
    assert np.isnan(y).all(axis=1).tolist() == [False, True, False]
    assert y[0].tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize("shape", PLAIN, ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **f32_inputs(*shape))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("x",), **f32_inputs(4, 9, 65))


def test_a_nan_stays_in_its_row_in_kernels(kernels):
    for bench in kernels(OP):
        test_a_nan_stays_in_its_row(bench)


def test_more_outputs_than_a_grid_holds_are_refused():
    launch = OP.kernels[-1].launch
    assert launch({"T": 70_000, "N": MAX_OUTPUTS, "K": 1}).grid == (70_000, 65_535)
    assert OP.kernels[-1].fits({"T": 1, "N": MAX_OUTPUTS, "K": 1})
    assert not OP.kernels[-1].fits({"T": 1, "N": MAX_OUTPUTS + 1, "K": 1})
