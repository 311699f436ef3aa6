"""Protects `causal_attention_gated`: the attention times the sigmoid of the gate, rounded once."""

import numpy as np
import pytest

from ptx.causal_attention_cases import case, plain
from ptx.causal_attention_gated.op import OP
from ptx.causal_attention_gated.ref import causal_attention_gated
from ptx.numerics import widen_bf16
from ptx.op import OpError

SHAPES = [
    (((3, 2), (0, 5)), 4, 2, 10, 4),
    (((60, 7), (0, 2)), 4, 2, 64, 16),
    (((300, 9),), 1, 1, 256, 16),
]


def _gated(*shape):
    args = case(*shape)
    gate = np.random.default_rng(1).standard_normal(args["q"].shape) * 3
    return {**args, "gate": gate}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **_gated(*shape))


def test_reference_against_a_plain_loop():
    args = _gated(*SHAPES[0])
    want = plain(args) / (1 + np.exp(-args["gate"]))
    assert causal_attention_gated(**args) == pytest.approx(want, rel=1e-12, abs=1e-12)


def test_a_gate_that_is_wide_open_leaves_the_sum_and_a_shut_one_gives_zero(bench):
    args = _gated(((60, 7), (0, 2)), 4, 2, 64)
    args["gate"][:, 0] = 200
    args["gate"][:, 1] = -200
    y = bench.run(OP, **args)["y"]
    want = plain(args)[:, 0]
    assert widen_bf16(y[:, 0]) == pytest.approx(want, rel=0.02, abs=0.02)
    assert not (y[:, 1] & 0x7FFF).any()


def test_a_gate_of_another_shape_is_refused(bench):
    args = {**_gated(*SHAPES[0]), "gate": np.zeros((7, 4, 9)), "y": np.zeros((7, 4, 10), np.uint16)}
    with pytest.raises(OpError, match=r"gate is \[7, 4, 9\], expected"):
        bench.run(OP, **args)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    args = _gated(*shape)
    for bench in kernels(OP, **args):
        bench.check(OP, **args)


def test_special_cases_in_kernels(kernels):
    for bench in kernels(OP):
        test_a_gate_that_is_wide_open_leaves_the_sum_and_a_shut_one_gives_zero(bench)
