"""Protects `linear_int4_group128`: the weights' format, the product, row invariance."""

import numpy as np
import pytest

from engine.artifacts.int4_group128 import INT4
from ptx.linear_cases import SHAPES, int4_inputs
from ptx.linear_int4_group128.op import OP


@pytest.mark.parametrize("shape", SHAPES["int4"], ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **int4_inputs(*shape))


@pytest.mark.parametrize("shape", SHAPES["int4"], ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **int4_inputs(*shape))


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, ("x",), **int4_inputs(17, 65, 256))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("x",), **int4_inputs(3, 9, 128))


def test_values_by_hand(bench):
    x = np.zeros((1, 256))
    x[0, [0, 1, 255]] = 1, 10, 100
    codes = np.zeros((1, 128), np.uint8)
    # k = 0 is the low nibble of byte 0 (7), k = 1 its high one (-7), 255 the last (-1).
    codes[0, [0, 127]] = 0x97, 0xF0
    scales = np.array([[0x3F80, 0x4000]], np.uint16)
    assert bench.run(OP, x=x, codes=codes, scales=scales)["y"].tolist() == [[7 - 70 - 200]]


def test_values_by_hand_in_kernels(kernels):
    for bench in kernels(OP):
        test_values_by_hand(bench)


def test_reads_the_layout_of_the_artifacts(bench):
    x, w = np.random.default_rng(0).standard_normal((2, 8, 256)).astype(np.float32)
    codes, scales = INT4.quantise(w)
    y = bench.run(OP, x=x, codes=codes, scales=scales)["y"]
    assert y == pytest.approx(x @ INT4.dequantise(codes, scales).T, abs=1e-5)
