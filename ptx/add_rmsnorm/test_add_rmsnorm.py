"""Protects `add_rmsnorm`: it adds, then has the bits of `rmsnorm` on what it stored."""

import numpy as np
import pytest

from ptx.add_rmsnorm.op import OP
from ptx.rmsnorm.op import OP as RMSNORM

SHAPES = [(1, 1), (3, 31), (2, 33), (5, 65), (1, 577)]
# One vector in one warp, in some threads of several, two of which the last is not everyone's.
TUNED = [(2, 4), (3, 128), (2, 132), (1, 2564), (2, 5120)]


def _inputs(n_tokens, d_model, offset=0.0):
    rng = np.random.default_rng(n_tokens)
    x, h = rng.standard_normal((2, n_tokens, d_model))
    return {"x": x, "h": 3 * h, "w": rng.standard_normal(d_model), "eps": 1e-5, "offset": offset}


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("n_tokens", "d_model"), [*SHAPES, (33, 577), (2, 9001)])
def test_against_float64(bench, n_tokens, d_model, offset):
    bench.check(OP, **_inputs(n_tokens, d_model, offset))


@pytest.mark.parametrize("d_model", [1, 7, 577])
def test_rows_do_not_depend_on_the_batch(bench, d_model):
    bench.check_rows_alone(OP, ("x", "h"), **_inputs(19, d_model))


def test_values_by_hand(bench):
    # 3, 4 as in rmsnorm's own test; eps as large as the mean of squares, 12.5.
    found = bench.run(OP, x=[[1.0, 6.0]], h=[[2.0, -2.0]], w=[1.0, 10.0], eps=12.5, offset=1.0)
    assert found["h"].tolist() == [[3.0, 4.0]]
    assert found["y"] == pytest.approx(np.array([[1.2, 8.8]]))


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("n_tokens", "d_model"), [*SHAPES, *TUNED])
def test_kernels(kernels, n_tokens, d_model, offset):
    inputs = _inputs(n_tokens, d_model, offset)
    for bench in kernels(OP, **inputs):
        bench.check(OP, **inputs)


@pytest.mark.parametrize("d_model", [65, 132])
def test_kernels_rows_alone(kernels, d_model):
    inputs = _inputs(4, d_model)
    for bench in kernels(OP, **inputs):
        bench.check_rows_alone(OP, ("x", "h"), **inputs)


def _check_bits(bench, d_model):
    inputs = _inputs(3, d_model)
    found = bench.run(OP, **inputs)
    x, h = (np.float32(inputs[name]) for name in ("x", "h"))
    assert found["h"].tobytes() == (h + x).tobytes()
    rest = {name: inputs[name] for name in ("w", "eps", "offset")}
    assert found["y"].tobytes() == bench.run(RMSNORM, x=found["h"], **rest)["y"].tobytes()


@pytest.mark.parametrize("d_model", [65, 132])
def test_bits_are_those_of_the_two_steps(bench, kernels, d_model):
    _check_bits(bench, d_model)
    for kernel_bench in kernels(OP, **_inputs(3, d_model)):
        _check_bits(kernel_bench, d_model)


@pytest.mark.parametrize("d_model", [65, 132])
def test_output_may_be_the_input(kernels, d_model):
    inputs = _inputs(3, d_model)
    for bench in kernels(OP, **inputs):
        buffers = {n: bench.device.allocate(np.shape(inputs[n]), "f32", n) for n in ("x", "h", "w")}
        for name, buffer in buffers.items():
            bench.device.upload(buffer, inputs[name])
        bench.device.launch(bench.alone(OP), **buffers, y=buffers["x"], eps=1e-5, offset=0.0)
        want = bench.run(OP, **inputs)
        assert bench.device.download(buffers["x"]).tobytes() == want["y"].tobytes()
        assert bench.device.download(buffers["h"]).tobytes() == want["h"].tobytes()


def test_a_launch_waits_for_the_one_before(kernels):
    inputs = _inputs(2, 132)
    for bench in kernels(OP, **inputs):
        buffers = {n: bench.device.allocate(np.shape(inputs[n]), "f32", n) for n in ("x", "h", "w")}
        for name, buffer in buffers.items():
            bench.device.upload(buffer, inputs[name])
        # A programmatic one may begin at once: it reads both buffers that this one wrote.
        for _ in range(2):
            bench.device.launch(bench.alone(OP), **buffers, y=buffers["x"], eps=1e-5, offset=0.0)
        once = bench.run(OP, **inputs)
        twice = bench.run(OP, **{**inputs, "x": once["y"], "h": once["h"]})
        assert bench.device.download(buffers["h"]).tobytes() == twice["h"].tobytes()
        assert bench.device.download(buffers["x"]).tobytes() == twice["y"].tobytes()
