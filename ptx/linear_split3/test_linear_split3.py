"""Protects `linear_split3`: where outputs end, the bits of the ops apart."""

import numpy as np
import pytest

from ptx.linear.op import OP as LINEAR
from ptx.linear_cases import check_split, split_inputs, split_shapes
from ptx.linear_split3.op import OP
from ptx.op import OpError

PER_TOKEN = ("x", "y0", "y1", "y2")


@pytest.mark.parametrize("shape", split_shapes("f32", 3), ids=str)
def test_against_float64_and_the_ops_apart(bench, shape):
    check_split(bench, OP, LINEAR, split_inputs("f32", *shape))


@pytest.mark.parametrize("shape", split_shapes("f32", 3), ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        check_split(bench, OP, LINEAR, split_inputs("f32", *shape))


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, PER_TOKEN, **split_inputs("f32", 17, (65, 3, 34), 256))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, PER_TOKEN, **split_inputs("f32", 3, (5, 2, 9), 128))


def test_rows_that_no_output_has_are_refused(bench):
    inputs = split_inputs("f32", 1, (5, 5, 5), 128)
    with pytest.raises(OpError, match=r"linear_split3: needs N = A \+ B \+ C"):
        bench.run(OP, **{**inputs, "y1": inputs["y1"][:, :4]})


def test_values_by_hand(bench):
    # Row n of the weight is n + 1; the first output has two rows, the others one.
    w = np.arange(1, 5)[:, None]
    outputs = {name: np.full((2, 1 + (name == "y0")), np.nan) for name in ("y0", "y1", "y2")}
    got = bench.run(OP, x=[[1], [10]], w=w, **outputs)
    assert got["y0"].tolist() == [[1, 2], [10, 20]]
    assert got["y1"].tolist() == [[3], [30]]
    assert got["y2"].tolist() == [[4], [40]]


def test_values_by_hand_in_kernels(kernels):
    for bench in kernels(OP):
        test_values_by_hand(bench)
