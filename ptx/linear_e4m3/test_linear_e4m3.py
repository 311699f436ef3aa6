"""Protects `linear_e4m3`: the product, tails of every tile, NaN, row invariance, refusals."""

import re

import numpy as np
import pytest

from ptx import narrow_kernel
from ptx.devices.emulator import EmulatorDevice
from ptx.encode_e4m3_rows.op import OP as ENCODE
from ptx.fp8 import round_to_e4m3
from ptx.linear_e4m3.op import OP
from ptx.linear_e4m3.ref import linear_e4m3
from ptx.numerics import mismatch
from ptx.op import OpError
from ptx.template import text_of

# T, N, K: one of each; one past a tile of 8 tokens, of 16 rows, of a warp's share of K; a chunk of
# three and of four blocks. Then past the 16 tokens of the kernel for few, and each larger tile with
# tails both ways; more and fewer rounds than the pipeline has stages.
FEW = [(1, 1, 64), (3, 17, 192), (8, 40, 256), (9, 33, 1088), (16, 16, 576)]
MANY = [(17, 65, 320), (33, 70, 64), (65, 40, 192), (129, 17, 128)]


def _scaled(rng, n_rows, n_in):
    """Codes of standard normal numbers times 64, and scales from 1/2 to 2."""
    return round_to_e4m3(64 * rng.standard_normal((n_rows, n_in))), rng.uniform(0.5, 2, n_rows)


def _inputs(n_tokens, n_out, n_in):
    rng = np.random.default_rng(n_tokens + n_out)
    x_codes, x_scales = _scaled(rng, n_tokens, n_in)
    w_codes, w_scales = _scaled(rng, n_out, n_in)
    return {"x_codes": x_codes, "x_scales": x_scales, "w_codes": w_codes, "w_scales": w_scales}


def _exact(n_tokens, n_out, n_in):
    """Small whole numbers and powers of two: every sum in any order, and all of y, are exact."""
    rng = np.random.default_rng(n_tokens + n_in)
    x, w = rng.integers(-4, 5, (n_tokens, n_in)), rng.integers(-4, 5, (n_out, n_in))
    x_scales, w_scales = np.exp2(rng.integers(-3, 4, n_tokens)), np.exp2(rng.integers(-3, 4, n_out))
    given = {
        "x_codes": round_to_e4m3(x), "x_scales": x_scales, "w_codes": round_to_e4m3(w),
        "w_scales": w_scales,
    }  # fmt: skip
    return given, (x @ w.T) * x_scales[:, None] * w_scales


@pytest.mark.parametrize("shape", FEW + MANY, ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **_inputs(*shape))


@pytest.mark.parametrize("shape", FEW + MANY, ids=str)
def test_kernels(kernels, shape):
    given = _inputs(*shape)
    for bench in kernels(OP, **given):
        bench.check(OP, **given)


@pytest.mark.parametrize("shape", [(17, 130, 64), (40, 129, 128)], ids=str)
def test_kernels_with_tiles_for_many_rows(kernels, monkeypatch, shape):
    monkeypatch.setattr(narrow_kernel, "MANY_ROWS", 1)
    given = _inputs(*shape)
    for bench in kernels(OP, **given):
        bench.check(OP, **given)


@pytest.mark.parametrize("shape", [(5, 21, 320), (40, 136, 192)], ids=str)
def test_kernels_have_exact_sums(kernels, shape):
    given, want = _exact(*shape)
    for bench in kernels(OP, **given):
        assert (bench.run(OP, **given)["y"] == want).all()


@pytest.mark.parametrize(
    "kernel",
    [kernel for kernel in OP.kernels if "mma.sync.aligned.m16n8k32.e4m3" in kernel.special],
    ids=lambda kernel: kernel.stem,
)
def test_sums_start_anew_every_64_of_k(kernel):
    """Which the emulator, whose sums are exact, does not feel."""
    for dims in OP.examples:
        if kernel.fits(dims):
            text = text_of(OP, kernel, dims)
            anew = len(re.findall(r"mma\.sync\.aligned[^;]*\{zero, zero, zero, zero\}", text))
            assert text.count("mma.sync.aligned.m16n8k32") == 2 * anew > 0


@pytest.mark.parametrize("n_tokens", [16, 17])
def test_every_code_is_multiplied_as_its_value(kernels, n_tokens):
    """Sixteen codes in each of 16 rows of one side, and rows of a single one on the other."""
    codes = np.zeros((n_tokens, 64), np.uint8)
    codes[:16, :16] = np.arange(256).reshape(16, 16)
    codes[codes & 0x7F == 0x7F] = 0
    ones = np.zeros((n_tokens, 64), np.uint8)
    np.fill_diagonal(ones, 0x38)
    scales = {"x_scales": np.ones(n_tokens), "w_scales": np.ones(n_tokens)}
    for given in (
        {"x_codes": codes, "w_codes": ones, **scales}, {"x_codes": ones, "w_codes": codes, **scales}
    ):
        for bench in kernels(OP, **given):
            bench.check(OP, **given)


@pytest.mark.parametrize("n_tokens", [9, 20])
def test_a_nan_stays_in_its_row_and_column(kernels, n_tokens):
    given = _inputs(n_tokens, 20, 128)
    given["x_codes"][2, 70] = 0x7F
    given["w_codes"][18, 5] = 0xFF
    want = np.zeros((n_tokens, 20), bool)
    want[2] = want[:, 18] = True
    for bench in kernels(OP, **given):
        assert (np.isnan(bench.run(OP, **given)["y"]) == want).all()


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, ("x_codes", "x_scales"), **_inputs(17, 9, 128))


def test_kernels_rows_alone(kernels):
    given = _inputs(3, 18, 128)
    for bench in kernels(OP, **given):
        bench.check_rows_alone(OP, ("x_codes", "x_scales"), **given)


def test_of_encoded_rows(bench):
    """With what `encode_e4m3_rows` makes of a matrix the product is that of the matrix, nearly."""
    rng = np.random.default_rng(0)
    sides = {}
    for name, n_rows in (("x", 30), ("w", 50)):
        cells = rng.standard_normal((n_rows, 256)).astype(np.float32)
        made = bench.run(ENCODE, w=cells)
        sides |= {name: cells, f"{name}_codes": made["codes"], f"{name}_scales": made["scales"]}
    want = sides.pop("x") @ sides.pop("w").T
    # Three bits of fraction: 2.5 % a factor in the mean, on both sides.
    off = np.linalg.norm(bench.run(OP, **sides)["y"] - want) / np.linalg.norm(want)
    assert 0.02 < off < 0.05


def test_shapes_that_disagree_are_refused(bench):
    with pytest.raises(OpError, match=r"needs K % 64 == 0, found T=1 K=96 N=2"):
        bench.run(OP, **_inputs(1, 2, 96))
    given = _inputs(2, 3, 64)
    with pytest.raises(OpError, match=r"linear_e4m3: w_scales is \[2\], expected \[3\]"):
        bench.run(OP, **{**given, "w_scales": given["w_scales"][:2]})


def test_a_programmatic_launch_waits_for_its_tokens():
    """After the encoder that writes them, as a chain has it; the emulator tells a missing wait."""
    device = EmulatorDevice(target="sm_90a")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 192)).astype(np.float32)
    given = _inputs(3, 17, 192)
    buffers = {
        name: device.allocate(shape, dtype, name)
        for name, shape, dtype in (
            ("w", x.shape, "f32"), ("codes", x.shape, "e4m3"), ("scales", (3,), "f32"),
            ("bad", (3,), "i32"), ("w_codes", (17, 192), "e4m3"), ("w_scales", (17,), "f32"),
            ("y", (3, 17), "f32"),
        )
    }  # fmt: skip
    for name, cells in (("w", x), *((n, given[n]) for n in ("w_codes", "w_scales"))):
        device.upload(buffers[name], cells)
    device.launch(ENCODE, **{name: buffers[name] for name in ("w", "codes", "scales", "bad")})
    weights = {name: buffers[name] for name in ("w_codes", "w_scales", "y")}
    device.launch(OP, x_codes=buffers["codes"], x_scales=buffers["scales"], **weights)
    codes, scales, y = (device.download(buffers[name]) for name in ("codes", "scales", "y"))
    want = linear_e4m3(codes, scales.astype(float), given["w_codes"], given["w_scales"])
    assert mismatch(y, want, OP.tolerance) is None
