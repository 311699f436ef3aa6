"""Protects `paged_attention_gated`: the gate; the rest is `paged_attention`'s text and tests."""

import numpy as np
import pytest

from ptx.numerics import widen_bf16
from ptx.paged_attention.op import OP as PLAIN
from ptx.paged_attention.test_paged_attention import PER_TOKEN, case_of
from ptx.paged_attention_gated.op import OP

SHAPES = [
    ((1, 17), 4, 2, 10, 4, 2),
    ((65, 5), 6, 1, 64, 16, 2),
    ((17,), 8, 1, 128, 16, 2),
]


def _case(shape):
    case = case_of(*shape)
    rng = np.random.default_rng(5)
    return {**case, "gate": 3 * rng.standard_normal(case["q"].shape)}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **_case(shape))


def test_the_gate_is_a_sigmoid_of_each_cell(bench):
    case = _case(SHAPES[0])
    plain = {name: array for name, array in case.items() if name != "gate"}
    want = widen_bf16(bench.run(PLAIN, **plain)["y"]) / (1 + np.exp(-case["gate"]))
    got = widen_bf16(bench.run(OP, **case)["y"])
    assert got == pytest.approx(want, rel=2**-7)


def test_large_gates_open_and_close(bench):
    case = _case(SHAPES[0])
    case["gate"] = np.where(case["gate"] > 0, 1e4, -1e4)
    got = widen_bf16(bench.run(OP, **case)["y"])
    assert (got[case["gate"] < 0] == 0).all()
    bench.check(OP, **case)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP, **_case(shape)):
        bench.check(OP, **_case(shape))


def test_rows_alone(kernels):
    case = _case(((3, 17), 1, 1, 64, 16, 1))
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("gate", *PER_TOKEN), **case)
