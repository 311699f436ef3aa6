"""Protects `norm_linear_bf16_split3`: the product, every edge of its kernels, walks, rows alone."""

import pytest

from ptx.bf16_few_cases import SHAPES, WALKS, check_rows, few_blocks, few_inputs, refused, tuned
from ptx.norm_linear_bf16_split3.op import OP
from ptx.op import OpError


@pytest.mark.parametrize("shape", SHAPES["split3"], ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **few_inputs(OP, *shape))


@pytest.mark.parametrize("shape", SHAPES["split3"], ids=str)
def test_kernels(kernels, shape):
    inputs = few_inputs(OP, *shape)
    for bench in kernels(OP, **inputs):
        bench.check(OP, **inputs)


@pytest.mark.parametrize("shape", WALKS["split3"], ids=str)
def test_few_blocks_walk_through_parts(kernels, shape):
    op = few_blocks(OP)
    inputs = few_inputs(op, *shape)
    for bench in tuned(kernels, op, inputs):
        bench.check(op, **inputs)


def test_tokens_do_not_feel_the_others(bench, kernels):
    inputs = few_inputs(OP, 16, (3, 2, 4), 288)
    for one in (bench, *kernels(OP, **inputs)):
        check_rows(one, OP, inputs)


@pytest.mark.parametrize("sentence", OP.requires)
def test_shapes_that_do_not_belong_together_are_refused(bench, sentence):
    with pytest.raises(OpError, match="norm_linear_bf16_split3: needs "):
        bench.run(OP, **refused(OP, sentence))
