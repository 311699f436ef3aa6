"""Protects `linear_nvfp4`: the product, the place of every scale, tails, NaN, row invariance."""

import numpy as np
import pytest

from ptx import narrow_kernel
from ptx.encode_nvfp4.op import OP as ENCODE
from ptx.fp8 import round_to_e4m3
from ptx.linear_nvfp4.op import OP
from ptx.nvfp4 import BLOCK, GLOBAL_TIMES_MAX, pack_nibbles, tile_scales
from ptx.op import OpError

# T, N, K: one of each; tails of each tile both ways, K of whole and of half stages, more rounds
# than the pipeline has stages; rows in more than one tile of scales.
SHAPES = [(1, 1, 64), (3, 70, 192), (17, 70, 128), (33, 40, 704), (65, 9, 64), (130, 17, 192)]
TOKENS = ("x_codes", "x_scales")


def _side(rng, n_rows, n_in, scales):
    codes = rng.integers(0, 16, (n_rows, n_in), np.uint8)
    return pack_nibbles(codes), rng.choice(scales, (n_rows, n_in // BLOCK))


def _inputs(n_tokens, n_out, n_in, scales=(0.5, 1, 1.25, 1.5, 2, 3.5), divisors=(3.7, 0.3)):
    rng = np.random.default_rng(n_tokens + n_out)
    scales = round_to_e4m3(np.array(scales))
    x_codes, x_scales = _side(rng, n_tokens, n_in, scales)
    w_codes, w_scales = _side(rng, n_out, n_in, scales)
    return {
        "x_codes": x_codes, "x_scales": x_scales, "x_global": np.array([divisors[0]]),
        "w_codes": w_codes, "w_tiles": tile_scales(w_scales), "w_global": np.array([divisors[1]]),
    }  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **_inputs(*shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    given = _inputs(*shape)
    for bench in kernels(OP, **given):
        bench.check(OP, **given)


@pytest.mark.parametrize("shape", [(17, 129, 64), (40, 130, 128)], ids=str)
def test_kernels_with_tiles_for_many_rows(kernels, monkeypatch, shape):
    monkeypatch.setattr(narrow_kernel, "MANY_ROWS", 1)
    given = _inputs(*shape)
    for bench in kernels(OP, **given):
        bench.check(OP, **given)


def test_kernels_have_exact_sums(bench, kernels):
    """Scales of few digits and divisors that are powers of two: any order gives the same bits."""
    for shape in ((5, 21, 320), (20, 136, 64)):
        given = _inputs(*shape, divisors=(0.5, 8))
        want = bench.run(OP, **given)["y"]
        for kernel in kernels(OP, **given):
            assert kernel.run(OP, **given)["y"].tobytes() == want.tobytes()


def test_every_scale_counts_for_its_16_of_its_row(kernels):
    """Scales that are all different, and a code of one at one k of each row in turn."""
    n_rows, n_in = 136, 128
    scales = np.arange(n_rows * n_in // BLOCK).reshape(n_rows, -1) % 125 + 1
    x = np.zeros((n_in // BLOCK, n_in), np.uint8)
    places = BLOCK * np.arange(len(x)) + np.arange(len(x)) % BLOCK
    x[np.arange(len(x)), places] = 2
    given = {
        "x_codes": pack_nibbles(x), "x_scales": np.full((len(x), len(x)), 0x38, np.uint8),
        "w_codes": np.full((n_rows, n_in // 2), 0x22, np.uint8),
        "w_tiles": tile_scales(scales.astype(np.uint8)),
        "x_global": np.ones(1), "w_global": np.ones(1),
    }  # fmt: skip
    for bench in kernels(OP, **given):
        bench.check(OP, **given)
    # And the other way round, for the scales of tokens.
    swapped = {
        **given, "x_codes": given["w_codes"], "x_scales": scales.astype(np.uint8),
        "w_codes": given["x_codes"], "w_tiles": tile_scales(given["x_scales"]),
    }  # fmt: skip
    for bench in kernels(OP, **swapped):
        bench.check(OP, **swapped)


def test_a_nan_stays_in_its_row_and_column(kernels):
    given = _inputs(9, 20, 128)
    given["x_scales"][2, 3] = 0x7F
    given["w_tiles"][0, 1, 16 * 18 + 2] = 0x7F
    want = np.zeros((9, 20), bool)
    want[2] = want[:, 18] = True
    for bench in kernels(OP, **given):
        assert (np.isnan(bench.run(OP, **given)["y"]) == want).all()


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, TOKENS, **_inputs(17, 9, 128))


def test_kernels_rows_alone(kernels):
    given = _inputs(4, 18, 128)
    for bench in kernels(OP, **given):
        bench.check_rows_alone(OP, TOKENS, **given)


def test_of_encoded_matrices(bench):
    """With what `encode_nvfp4` makes of two matrices the product is theirs, nearly."""
    rng = np.random.default_rng(0)
    sides, given = {}, {}
    for name, n_rows in (("x", 30), ("w", 50)):
        cells = rng.standard_normal((n_rows, 256)).astype(np.float32)
        factor = np.array([GLOBAL_TIMES_MAX / np.abs(cells).max()], np.float32)
        shapes = {"codes": (n_rows, 128), "scales": (n_rows, 16), "bad": (n_rows,)}
        outputs = {key: np.zeros(shape, np.uint8) for key, shape in shapes.items()}
        made = bench.run(ENCODE, w=cells, global_scale=factor, **outputs)
        scales = made["scales"] if name == "x" else tile_scales(made["scales"])
        sides[name] = cells
        given |= {f"{name}_codes": made["codes"], f"{name}_global": factor}
        given["x_scales" if name == "x" else "w_tiles"] = scales
    want = sides["x"] @ sides["w"].T
    off = np.linalg.norm(bench.run(OP, **given)["y"] - want) / np.linalg.norm(want)
    # One bit of fraction, with a scale for 16: some 9 % a factor in the mean, on both sides.
    assert 0.08 < off < 0.2


@pytest.mark.parametrize(
    ("name", "cells", "sentence"),
    [
        ("x_scales", np.zeros((2, 6)), r"linear_nvfp4: needs J = 8 R, found"),
        ("w_tiles", np.zeros((2, 2, 512)), r"needs I = ceil\(N / 128\), found"),
        ("w_tiles", np.zeros((1, 3, 512)), "needs R = 4 P, found"),
        ("w_tiles", np.zeros((1, 2, 256)), "needs Q = 512, found"),
        ("x_global", np.zeros(2), r"w_global is \[1\], expected \[2\]"),
    ],
)
def test_shapes_that_disagree_are_refused(bench, name, cells, sentence):
    with pytest.raises(OpError, match=sentence):
        bench.run(OP, **{**_inputs(2, 3, 128), name: cells})


def test_k_that_is_not_whole_steps_is_refused(bench):
    given = _inputs(2, 3, 128)
    for name, width in (("x_codes", 48), ("w_codes", 48), ("x_scales", 6)):
        given[name] = given[name][:, :width]
    with pytest.raises(OpError, match="needs K % 64 == 0 of K = 2 J, found T=2 J=48"):
        bench.run(OP, **given)
