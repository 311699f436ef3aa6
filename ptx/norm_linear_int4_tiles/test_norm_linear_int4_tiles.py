"""Protects `norm_linear_int4_tiles`: the product, the edges of its kernels, rows alone."""

import pytest

from ptx.linear_few_cases import SHAPES, few_inputs, refused
from ptx.norm_linear_int4_tiles.op import OP
from ptx.op import OpError


@pytest.mark.parametrize("shape", SHAPES["none"], ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **few_inputs(OP, *shape))


@pytest.mark.parametrize("shape", SHAPES["none"], ids=str)
def test_kernels(kernels, shape):
    inputs = few_inputs(OP, *shape)
    for bench in kernels(OP, **inputs):
        bench.check(OP, **inputs)


def test_kernels_rows_alone(kernels):
    # 1 to 4, 5 to 8 and more tokens are multiplied in ways of their own.
    inputs = few_inputs(OP, 9, SHAPES["none"][0][1], 1)
    for bench in kernels(OP, **inputs):
        bench.check_rows_alone(OP, ("x", *inputs.keys() & {"y", "h", "y0", "y1", "y2"}), **inputs)


@pytest.mark.parametrize("sentence", OP.requires)
def test_shapes_that_do_not_belong_together_are_refused(bench, sentence):
    inputs = refused(OP, sentence)
    with pytest.raises(OpError, match="norm_linear_int4_tiles: needs "):
        bench.run(OP, **inputs)
