"""Protects `linear_swiglu`: the bits of two linears and swiglu, row invariance."""

import numpy as np
import pytest

from ptx.linear.op import OP as LINEAR
from ptx.linear_cases import SHAPES, check_swiglu, swiglu_inputs
from ptx.linear_swiglu.op import OP
from ptx.op import OpError


@pytest.mark.parametrize("shape", SHAPES["f32"], ids=str)
def test_against_float64_and_the_ops_apart(bench, shape):
    check_swiglu(bench, OP, LINEAR, swiglu_inputs("f32", *shape))


@pytest.mark.parametrize("shape", SHAPES["f32"], ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        check_swiglu(bench, OP, LINEAR, swiglu_inputs("f32", *shape))


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, ("x", "y"), **swiglu_inputs("f32", 17, 33, 256))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("x", "y"), **swiglu_inputs("f32", 3, 9, 128))


def test_a_weight_that_is_no_pair_is_refused(bench):
    inputs = swiglu_inputs("f32", 1, 4, 128)
    with pytest.raises(OpError, match="linear_swiglu: needs N = 2 F"):
        bench.run(OP, **{**inputs, "y": inputs["y"][:, :3]})


def test_values_by_hand(bench):
    # Pairs (32, 2) and (0, 5): silu(32) is 32 in float32, silu(0) is 0.
    y = bench.run(OP, x=[[1, 2]], w=[[32, 0], [0, 0], [0, 1], [1, 2]], y=[[np.nan, np.nan]])["y"]
    assert y.tolist() == [[64, 0]]


def test_values_by_hand_in_kernels(kernels):
    for bench in kernels(OP):
        test_values_by_hand(bench)


def test_the_grid_is_bounded_by_outputs_not_by_rows():
    kernel = OP.kernels[-1]
    assert kernel.launch({"T": 3, "F": 524_280, "N": 1_048_560, "K": 1}).grid == (3, 65_535)
    assert kernel.fits({"T": 3, "F": 524_280, "N": 1_048_560, "K": 1})
    assert not kernel.fits({"T": 3, "F": 524_281, "N": 1_048_562, "K": 1})
