"""Protects `linear_bf16_split4`: where outputs end, the bits of the ops apart."""

import pytest

from ptx.linear_bf16.op import OP as LINEAR
from ptx.linear_bf16_split4.op import OP
from ptx.linear_cases import check_split, split_inputs, split_shapes
from ptx.op import OpError

PER_TOKEN = ("x", "y0", "y1", "y2", "y3")


@pytest.mark.parametrize("shape", split_shapes("bf16", 4), ids=str)
def test_against_float64_and_the_ops_apart(bench, shape):
    check_split(bench, OP, LINEAR, split_inputs("bf16", *shape))


@pytest.mark.parametrize("shape", split_shapes("bf16", 4), ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        check_split(bench, OP, LINEAR, split_inputs("bf16", *shape))


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, PER_TOKEN, **split_inputs("bf16", 17, (65, 3, 34, 10), 256))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, PER_TOKEN, **split_inputs("bf16", 3, (5, 2, 9, 1), 128))


def test_rows_that_no_output_has_are_refused(bench):
    inputs = split_inputs("bf16", 1, (5, 5, 5, 5), 128)
    with pytest.raises(OpError, match=r"linear_bf16_split4: needs N = A \+ B \+ C \+ D"):
        bench.run(OP, **{**inputs, "y1": inputs["y1"][:, :4]})
