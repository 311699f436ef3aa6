"""Protects `linear_int8_group_add`: it adds to h what `linear_int8_group` computes."""

import numpy as np
import pytest

from ptx.linear_cases import SHAPES, int8_inputs
from ptx.linear_int8_group.op import OP as LINEAR
from ptx.linear_int8_group_add.op import OP


def _inputs(shape):
    h = np.random.default_rng(1).standard_normal(shape[:2])
    return {**int8_inputs(*shape), "h": h}


@pytest.mark.parametrize("shape", SHAPES["int8"], ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **_inputs(shape))


@pytest.mark.parametrize("shape", SHAPES["int8"], ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(shape))


def test_from_zero_it_is_the_product(bench):
    inputs = _inputs(SHAPES["int8"][-1])
    h = bench.run(OP, **{**inputs, "h": np.zeros_like(inputs["h"])})["h"]
    del inputs["h"]
    assert h.tobytes() == bench.run(LINEAR, **inputs)["y"].tobytes()
