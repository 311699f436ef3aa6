"""Protects `rmsnorm`: the formula, eps, offset, in-place use, row invariance."""

import numpy as np
import pytest

from ptx.rmsnorm.op import OP
from ptx.rmsnorm.ref import rmsnorm

SHAPES = [(1, 1), (1, 576), (3, 63), (5, 65), (33, 577), (2, 9001)]


def _inputs(n_tokens, d_model, offset=0.0):
    rng = np.random.default_rng(n_tokens)
    return {
        "x": 3 * rng.standard_normal((n_tokens, d_model)),
        "w": rng.standard_normal(d_model),
        "eps": 1e-5,
        "offset": offset,
    }


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("n_tokens", "d_model"), SHAPES)
def test_against_float64(bench, n_tokens, d_model, offset):
    bench.check(OP, **_inputs(n_tokens, d_model, offset))


@pytest.mark.parametrize("d_model", [1, 7, 16, 577, 9001])
def test_rows_do_not_depend_on_the_batch(bench, d_model):
    bench.check_rows_alone(OP, ("x",), **_inputs(19, d_model))


@pytest.mark.parametrize(("offset", "want"), [(0.0, [0.6, 8.0]), (1.0, [1.2, 8.8])])
def test_values_by_hand(offset, want):
    # mean of squares 12.5, and eps as large as that doubles what is under the root.
    y = rmsnorm(np.array([[3.0, 4.0]]), np.array([1.0, 10.0]), 12.5, offset)
    assert y == pytest.approx(np.array([want]))


def test_a_plain_weight_keeps_its_bits(bench):
    inputs = {**_inputs(1, 577), "eps": 1e-30}
    inputs["x"] = np.ones((1, 577))
    assert bench.run(OP, **inputs)["y"][0].tobytes() == inputs["w"].astype(np.float32).tobytes()


def test_a_row_of_zeros_stays_zero(bench):
    y = bench.run(OP, x=np.zeros((2, 5)), w=np.ones(5), eps=1e-5, offset=1.0)["y"]
    assert not y.any()


def test_output_may_be_the_input(bench):
    inputs = _inputs(9, 65)
    x, w = (bench.device.allocate(np.shape(inputs[n]), "f32", n) for n in ("x", "w"))
    bench.device.upload(x, inputs["x"])
    bench.device.upload(w, inputs["w"])
    bench.device.launch(bench.alone(OP), x=x, w=w, y=x, eps=1e-5, offset=0.0)
    assert x.tobytes() == bench.run(OP, **inputs)["y"].tobytes()


# Beside odd widths those of the tuned text: a thread with one vector in one warp, with some threads
# idle, in several warps, with two vectors of which the last is not everyone's, the real width.
KERNEL_SHAPES = [(1, 1), (3, 31), (2, 33), (5, 65), (1, 577), (2, 4), (3, 128), (2, 132), (1, 2564)]


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("n_tokens", "d_model"), KERNEL_SHAPES)
def test_kernels(kernels, n_tokens, d_model, offset):
    inputs = _inputs(n_tokens, d_model, offset)
    for bench in kernels(OP, **inputs):
        bench.check(OP, **inputs)


def test_the_real_width_in_kernels(kernels):
    inputs = _inputs(2, 5120, 1.0)
    for bench in kernels(OP, **inputs):
        bench.check(OP, **inputs)


def test_a_width_past_the_registers_is_left_to_another_kernel():
    dims = [{"T": 1, "D": d} for d in (10240, 10244, 5122)]
    assert [OP.kernels[0].fits(each) for each in dims] == [True, False, False]


@pytest.mark.parametrize("d_model", [65, 132])
def test_kernels_rows_alone(kernels, d_model):
    inputs = _inputs(4, d_model)
    for bench in kernels(OP, **inputs):
        bench.check_rows_alone(OP, ("x",), **inputs)


@pytest.mark.parametrize("d_model", [577, 576])
def test_kernels_keep_plain_weights_and_zeros(kernels, d_model):
    inputs = {**_inputs(1, d_model), "eps": 1e-30, "x": np.ones((1, d_model))}
    for bench in kernels(OP, **inputs):
        want = inputs["w"].astype(np.float32)
        assert bench.run(OP, **inputs)["y"][0].tobytes() == want.tobytes()
        assert not bench.run(OP, **{**inputs, "x": np.zeros((1, d_model))})["y"].any()


@pytest.mark.parametrize("d_model", [65, 132])
def test_output_of_a_kernel_may_be_the_input(kernels, d_model):
    inputs = _inputs(3, d_model)
    for bench in kernels(OP, **inputs):
        assert run_in_place(bench, inputs) == bench.run(OP, **inputs)["y"].tobytes()


def run_in_place(bench, inputs):
    """The bytes of y where it is x."""
    x, w = (bench.device.allocate(np.shape(inputs[n]), "f32", n) for n in ("x", "w"))
    bench.device.upload(x, inputs["x"])
    bench.device.upload(w, inputs["w"])
    bench.device.launch(bench.alone(OP), x=x, w=w, y=x, eps=1e-5, offset=0.0)
    return bench.device.download(x).tobytes()


def test_a_launch_waits_for_the_one_before(kernels):
    inputs = _inputs(2, 132)
    for bench in kernels(OP, **inputs):
        x, w, y = (bench.device.allocate(np.shape(inputs[n]), "f32", n) for n in ("x", "w", "x"))
        bench.device.upload(x, inputs["x"])
        bench.device.upload(w, inputs["w"])
        # A programmatic one may begin at once: it reads, and then overwrites, what this one wrote.
        bench.device.launch(bench.alone(OP), x=x, w=w, y=y, eps=1e-5, offset=0.0)
        bench.device.launch(bench.alone(OP), x=y, w=w, y=x, eps=1e-5, offset=0.0)
        bench.device.launch(bench.alone(OP), x=x, w=w, y=y, eps=1e-5, offset=0.0)
        want = inputs
        for _ in range(3):
            want = {**inputs, "x": bench.run(OP, **want)["y"]}
        assert bench.device.download(y).tobytes() == want["x"].tobytes()
