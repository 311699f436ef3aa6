"""Protects `swiglu`: the formula over the whole range, silence on overflow, row invariance."""

import warnings

import numpy as np
import pytest

from ptx.swiglu.op import OP
from ptx.swiglu.ref import swiglu


def _inputs(n_tokens, d_ff):
    rng = np.random.default_rng(n_tokens)
    gate, up = rng.standard_normal((2, n_tokens, d_ff))
    return {"gate": 5 * gate, "up": up}


@pytest.mark.parametrize(("n_tokens", "d_ff"), [(1, 1), (1, 1536), (3, 63), (17, 65), (33, 577)])
def test_against_float64(bench, n_tokens, d_ff):
    bench.check(OP, **_inputs(n_tokens, d_ff))


@pytest.mark.parametrize("d_ff", [1, 7, 16, 577, 1536])
def test_rows_do_not_depend_on_the_batch(bench, d_ff):
    bench.check_rows_alone(OP, ("gate", "up"), **_inputs(19, d_ff))


def test_far_ends_are_silent_and_right():
    gate = np.array([[-3e38, -1000, -90, 0, 90, 1000, 1e38]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = swiglu(gate, np.full_like(gate, 2))
    assert y[0] == pytest.approx([0, 0, 0, 0, 180, 2000, 2e38], abs=1e-36)


@pytest.mark.parametrize("name", ["gate", "up"])
def test_output_may_be_an_input(bench, name):
    inputs = _inputs(5, 65)
    buffers = {n: bench.device.allocate((5, 65), "f32", n) for n in inputs}
    for n, buffer in buffers.items():
        bench.device.upload(buffer, inputs[n])
    bench.device.launch(OP, **buffers, y=buffers[name])
    assert buffers[name].tobytes() == bench.run(OP, **inputs)["y"].tobytes()
