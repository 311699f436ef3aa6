"""Protects `gated_rmsnorm`: plain weight, norm before gate, in-place use, row invariance."""

import math
import warnings

import numpy as np
import pytest

from ptx.gated_rmsnorm.op import OP
from ptx.gated_rmsnorm.ref import gated_rmsnorm

SHAPES = [(1, 1, 1), (1, 48, 128), (3, 6, 16), (33, 5, 7), (2, 3, 577)]


def _inputs(n_tokens, n_value_heads, d_value):
    rng = np.random.default_rng(n_tokens)
    o, z = rng.standard_normal((2, n_tokens, n_value_heads, d_value))
    return {"o": o, "z": 3 * z, "w": 1 + 0.2 * rng.standard_normal(d_value), "eps": 1e-6}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **_inputs(*shape))


def test_against_a_plain_loop(bench):
    inputs = _inputs(3, 6, 16)
    y = bench.run(OP, **inputs)["y"]
    for t in range(3):
        for j in range(6):
            root = math.sqrt(sum(v * v for v in inputs["o"][t, j]) / 16 + 1e-6)
            for d in range(16):
                z = inputs["z"][t, j, d]
                want = inputs["o"][t, j, d] / root * inputs["w"][d] * z / (1 + math.exp(-z))
                assert y[t, j, d] == pytest.approx(want, rel=5e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_do_not_depend_on_the_batch(bench, shape):
    bench.check_rows_alone(OP, ("o", "z"), **_inputs(19, *shape[1:]))


def test_values_by_hand():
    # Mean of squares 12.5, and eps as large as that doubles what is under the root. A weight of
    # zero gives zero: nothing is added to it.
    y = gated_rmsnorm(
        np.array([[[3.0, 4.0, 0.0, 5.0]]]), np.full((1, 1, 4), math.log(3)),
        np.array([1.0, 10.0, 1.0, 0.0]), 12.5,
    )
    gate = math.log(3) * 0.75
    assert y.ravel() == pytest.approx([0.6 * gate, 8 * gate, 0, 0])


def test_a_closed_gate_and_a_head_of_zeros_give_zero(bench):
    inputs = _inputs(2, 3, 5)
    inputs["z"][0] = 0
    inputs["o"][1] = 0
    assert not bench.run(OP, **inputs)["y"].any()


def test_far_ends_are_silent_and_right():
    z = np.array([[[-3e38, -1000, -90, 0, 90, 1000, 1e30]]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = gated_rmsnorm(np.ones_like(z), z, np.ones(7, np.float32), 1e-6)
    assert y.ravel() == pytest.approx([0, 0, 0, 0, 90, 1000, 1e30], rel=1e-5, abs=1e-36)


@pytest.mark.parametrize("name", ["o", "z"])
def test_output_may_be_an_input(bench, name):
    inputs = _inputs(5, 3, 16)
    buffers = {n: bench.device.allocate(inputs[n].shape, "f32", n) for n in ("o", "z", "w")}
    for n, buffer in buffers.items():
        bench.device.upload(buffer, inputs[n])
    bench.device.launch(bench.alone(OP), **buffers, y=buffers[name], eps=1e-6)
    got = bench.device.download(buffers[name])
    assert got.tobytes() == bench.run(OP, **inputs)["y"].tobytes()


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 6, 16), (2, 5, 7), (1, 3, 65)], ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(*shape))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("o", "z"), **_inputs(4, 3, 65))


def test_kernels_give_zeros_and_the_far_ends(kernels):
    z = np.array([[[-3e38, -1000, -90, 0, 90, 1000, 1e30]]], np.float32)
    for bench in kernels(OP):
        test_a_closed_gate_and_a_head_of_zeros_give_zero(bench)
        y = bench.run(OP, o=np.ones_like(z), z=z, w=np.ones(7), eps=1e-6)["y"]
        assert y.ravel() == pytest.approx([0, 0, 0, 0, 90, 1000, 1e30], rel=1e-5, abs=1e-36)


@pytest.mark.parametrize("name", ["o", "z"])
def test_output_of_a_kernel_may_be_an_input(kernels, name):
    for bench in kernels(OP):
        test_output_may_be_an_input(bench, name)


def test_kernels_agree_in_every_bit(kernels):
    inputs = _inputs(2, 9, 128)
    results = [bench.run(OP, **inputs)["y"].tobytes() for bench in kernels(OP, **inputs)]
    assert all(bits == results[-1] for bits in results)
