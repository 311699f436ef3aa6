"""Protects `linear_int4_group128_swiglu`: the bits of two linears and swiglu, row invariance."""

import pytest

from ptx.linear_cases import SHAPES, check_swiglu, swiglu_inputs
from ptx.linear_int4_group128.op import OP as LINEAR
from ptx.linear_int4_group128_swiglu.op import OP
from ptx.op import OpError


@pytest.mark.parametrize("shape", SHAPES["int4"], ids=str)
def test_against_float64_and_the_ops_apart(bench, shape):
    check_swiglu(bench, OP, LINEAR, swiglu_inputs("int4", *shape))


@pytest.mark.parametrize("shape", SHAPES["int4"], ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        check_swiglu(bench, OP, LINEAR, swiglu_inputs("int4", *shape))


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, ("x", "y"), **swiglu_inputs("int4", 17, 33, 256))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("x", "y"), **swiglu_inputs("int4", 3, 9, 128))


def test_a_weight_that_is_no_pair_is_refused(bench):
    inputs = swiglu_inputs("int4", 1, 4, 128)
    with pytest.raises(OpError, match="linear_int4_group128_swiglu: needs N = 2 F"):
        bench.run(OP, **{**inputs, "y": inputs["y"][:, :3]})
