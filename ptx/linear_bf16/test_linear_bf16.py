"""Protects `linear_bf16`: the weights' format, the product, row invariance."""

import numpy as np
import pytest

from ptx.linear_bf16.op import OP
from ptx.linear_cases import SHAPES, bf16_inputs


@pytest.mark.parametrize("shape", SHAPES["bf16"], ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **bf16_inputs(*shape))


@pytest.mark.parametrize("shape", SHAPES["bf16"], ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **bf16_inputs(*shape))


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, ("x",), **bf16_inputs(17, 65, 256))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("x",), **bf16_inputs(3, 9, 128))


def test_values_by_hand(bench):
    # 1.5 and -2 are bf16, and 0x3FC0 is the upper half of 1.5 in float32.
    y = bench.run(OP, x=[[1, 10]], w=np.array([[0x3FC0, 0xC000]], np.uint16))["y"]
    assert y.tolist() == [[-18.5]]


def test_values_by_hand_in_kernels(kernels):
    for bench in kernels(OP):
        test_values_by_hand(bench)
