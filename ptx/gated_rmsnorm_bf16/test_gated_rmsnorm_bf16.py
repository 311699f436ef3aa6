"""Protects `gated_rmsnorm_bf16`: the bits of `gated_rmsnorm` and then `encode_bf16`; odd widths,
heads that fill no warp, rows alone."""

import numpy as np
import pytest

from ptx.encode_bf16.op import OP as ENCODE_BF16
from ptx.gated_rmsnorm.op import OP as GATED_RMSNORM
from ptx.gated_rmsnorm_bf16.op import OP
from ptx.numerics import round_to_bf16

PER_TOKEN = ("o", "z")
# Of the tuned kernel: one, two and four vectors of a lane; a warp, a block, and a head more.
TUNED = [(1, 1, 32), (3, 5, 64), (2, 16, 128), (2, 17, 128)]
SHAPES = [(1, 1, 1), (3, 6, 16), (2, 5, 7), (1, 3, 65), *TUNED]


def _inputs(n_tokens, n_value_heads, d_value):
    rng = np.random.default_rng(n_tokens + d_value)
    o, z = rng.standard_normal((2, n_tokens, n_value_heads, d_value))
    return {"o": 2 * o, "z": 3 * z, "w": 1 + 0.2 * rng.standard_normal(d_value), "eps": 1e-6}


def _far_ends():
    """Heads of every magnitude under gates of all kinds, in whole vectors of a lane."""
    rng = np.random.default_rng(5)
    gates = [-3e38, -1000, -104, -90, -87.5, -1e-38, -0.0, 0, 1e-44, 1, 90, 1000, 1e30, -20, 5, -1]
    o = rng.standard_normal((3, 6, 128)) * np.logspace(-44, 18, 18).reshape(3, 6, 1)
    o[1, 2], o[2, 3] = 0, -0.0
    z = np.stack([rng.permutation(np.tile(gates, 8)) for _ in range(18)]).reshape(o.shape)
    return {"o": o, "z": z, "w": rng.standard_normal(128), "eps": 1e-6}


@pytest.mark.parametrize("shape", [*SHAPES, (33, 5, 7), (2, 3, 577), (1, 48, 128)], ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **_inputs(*shape))


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, PER_TOKEN, **_inputs(19, 3, 65))


def test_bits_are_those_of_float32_rounded(bench):
    inputs = _inputs(3, 5, 65)
    wide = bench.run(GATED_RMSNORM, **inputs)["y"]
    assert bench.run(OP, **inputs)["y"].tobytes() == round_to_bf16(wide).tobytes()


def _check_bits(kernels, inputs):
    """Every kernel writes what each kernel of the float32 op and the encoder after it write."""
    (encoder,) = kernels(ENCODE_BF16)
    wide = [norm.run(GATED_RMSNORM, **inputs)["y"] for norm in kernels(GATED_RMSNORM, **inputs)]
    want = {encoder.run(ENCODE_BF16, x=y.reshape(len(y), -1))["y"].tobytes() for y in wide}
    assert {bench.run(OP, **inputs)["y"].tobytes() for bench in kernels(OP, **inputs)} == want


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    inputs = _inputs(*shape)
    for bench in kernels(OP, **inputs):
        bench.check(OP, **inputs)
    _check_bits(kernels, inputs)


@pytest.mark.parametrize("shape", TUNED, ids=str)
def test_the_tuned_kernels_take_whole_vectors(shape):
    dims = dict(zip(("T", "Nv", "Dv"), shape, strict=True))
    assert [k.stem for k in OP.kernels if k.fits(dims)] == ["sm_90a", "sm_80", "portable"]


def test_bits_at_the_far_ends(kernels):
    _check_bits(kernels, _far_ends())


@pytest.mark.parametrize("shape", [(4, 3, 65), (4, 5, 128)], ids=str)
def test_kernels_rows_alone(kernels, shape):
    inputs = _inputs(*shape)
    for bench in kernels(OP, **inputs):
        bench.check_rows_alone(OP, PER_TOKEN, **inputs)
