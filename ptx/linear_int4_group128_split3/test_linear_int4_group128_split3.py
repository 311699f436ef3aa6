"""Protects `linear_int4_group128_split3`: where outputs end, the bits of the ops apart."""

import pytest

from ptx.linear_cases import check_split, split_inputs, split_shapes
from ptx.linear_int4_group128.op import OP as LINEAR
from ptx.linear_int4_group128_split3.op import OP
from ptx.op import OpError

PER_TOKEN = ("x", "y0", "y1", "y2")


@pytest.mark.parametrize("shape", split_shapes("int4", 3), ids=str)
def test_against_float64_and_the_ops_apart(bench, shape):
    check_split(bench, OP, LINEAR, split_inputs("int4", *shape))


@pytest.mark.parametrize("shape", split_shapes("int4", 3), ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        check_split(bench, OP, LINEAR, split_inputs("int4", *shape))


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, PER_TOKEN, **split_inputs("int4", 17, (65, 3, 34), 256))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, PER_TOKEN, **split_inputs("int4", 3, (5, 2, 9), 128))


def test_rows_that_no_output_has_are_refused(bench):
    inputs = split_inputs("int4", 1, (5, 5, 5), 128)
    with pytest.raises(OpError, match=r"linear_int4_group128_split3: needs N = A \+ B \+ C"):
        bench.run(OP, **{**inputs, "y1": inputs["y1"][:, :4]})
