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
    bench.device.launch(bench.alone(OP), **buffers, y=buffers[name])
    assert buffers[name].tobytes() == bench.run(OP, **inputs)["y"].tobytes()


@pytest.mark.parametrize(("n_tokens", "d_ff"), [(1, 1), (3, 63), (2, 257), (1, 1536)])
def test_kernels(kernels, n_tokens, d_ff):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(n_tokens, d_ff))


def test_kernels_over_the_whole_range(kernels):
    # Each gate alone in its row, so that a large neighbour cannot hide its error.
    gate = np.concatenate([np.linspace(-87, 20, 400), [-1e-30, 1e-30, 0.5, 88, 1e4, 3e38]])
    gate = gate[:, None].astype(np.float32)
    want = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64)))
    for bench in kernels(OP):
        y = bench.run(OP, gate=gate, up=np.ones_like(gate))["y"]
        assert np.max(np.abs(y - want) / np.abs(want)) < 4e-7


def test_far_ends_of_kernels(kernels):
    gate = np.array([[-3e38, -1000, -90, -0.0, 0, np.nan]], np.float32)
    for bench in kernels(OP):
        y = bench.run(OP, gate=gate, up=np.full_like(gate, 2))["y"][0]
        assert y[:5] == pytest.approx([0, 0, -180 * np.exp(-90), 0, 0], rel=1e-4, abs=1e-44)
        assert np.isnan(y[5])


@pytest.mark.parametrize("name", ["gate", "up"])
def test_output_of_a_kernel_may_be_an_input(kernels, name):
    inputs = _inputs(3, 65)
    for bench in kernels(OP):
        buffers = {n: bench.device.allocate((3, 65), "f32", n) for n in inputs}
        for n, buffer in buffers.items():
            bench.device.upload(buffer, inputs[n])
        bench.device.launch(bench.alone(OP), **buffers, y=buffers[name])
        got = bench.device.download(buffers[name])
        assert got.tobytes() == bench.run(OP, **inputs)["y"].tobytes()
