"""Owns the oracle's small functions: the BF16 grid, rounding policies, norms, rotary, convolution.

Each is checked against another way of computing it, in loops or by exhaustion.
"""

import dataclasses
import math

import numpy as np
import pytest

from reference import delta, rope
from reference.attention import attend
from reference.bf16 import from_bits, round_bf16, to_bits
from reference.config import MINI, TINY, Yarn
from reference.errors import OracleError
from reference.norms import gated_norm, l2, rms1, sigmoid, silu, softplus
from reference.rounding import ENGINE_BF16, EXACT, POINTS, POLICIES, TRANSFORMERS_BF16, Rounding

FINITE = np.array([w for w in range(1 << 16) if w & 0x7F80 != 0x7F80], np.uint16)
# The dimensions of the 27B model, for facts that depend on them.
LARGE = dataclasses.replace(
    MINI, n_vocab=248320, d_model=5120, d_ff=17408, n_layers=64, n_heads=24, n_kv_heads=4,
    n_key_heads=16, n_value_heads=48,
)


def test_every_finite_word_round_trips() -> None:
    values = from_bits(FINITE)
    np.testing.assert_array_equal(to_bits(values), FINITE)
    np.testing.assert_array_equal(round_bf16(values), values)


def test_every_midpoint_goes_to_the_even_word() -> None:
    words = np.arange(0x7F7F, dtype=np.uint16)
    low, high = (from_bits(w).astype(np.float64) for w in (words, words + np.uint16(1)))
    middle = (low + high) / 2
    even = np.where(words % 2 == 0, low, high)
    for sign in (1.0, -1.0):
        np.testing.assert_array_equal(round_bf16(sign * middle), sign * even)
        np.testing.assert_array_equal(round_bf16(sign * np.nextafter(middle, 0)), sign * low)
        above = np.nextafter(middle, np.inf)
        np.testing.assert_array_equal(round_bf16(sign * above), sign * high)


def test_rounding_does_not_pass_through_float32() -> None:
    # Above the midpoint of 1 and its successor by less than float32 can tell.
    x = np.array([1.0 + 2.0**-8 + 2.0**-40])
    assert round_bf16(x)[0] == 1.0 + 2.0**-7
    assert round_bf16(x.astype(np.float32))[0] == 1.0


def test_extremes_of_the_grid() -> None:
    top = 255.0 * 2.0**120
    given = np.array([top, top * (1 + 2.0**-9), -top * (1 + 2.0**-8), np.inf, 2.0**-134, -0.0])
    want = np.array([top, top, -np.inf, np.inf, 0.0, -0.0])
    np.testing.assert_array_equal(round_bf16(given), want)
    assert np.signbit(round_bf16(given)[-1])
    assert np.isnan(round_bf16(np.array([np.nan])))[0]
    assert to_bits(np.array([np.nan]))[0] == 0x7FC0


def test_policies_name_every_point() -> None:
    for policy in POLICIES.values():
        assert set(policy.grids) == set(POINTS)
    x = np.array([1.0 + 2.0**-20])
    assert EXACT("embed", x)[0] == x[0]
    assert ENGINE_BF16("embed", x)[0] == 1.0
    assert ENGINE_BF16("beta", x)[0] == x[0]
    assert TRANSFORMERS_BF16("beta", x)[0] == 1.0
    assert ENGINE_BF16.replaced(beta="bf16")("beta", x)[0] == 1.0


@pytest.mark.parametrize("change", [{"nothing": "bf16"}, {"embed": "fp8"}])
def test_unknown_points_and_grids_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(OracleError):
        EXACT.replaced(**change)


def test_a_policy_must_be_whole() -> None:
    with pytest.raises(OracleError, match="leaves out"):
        Rounding("part", {"embed": "bf16"})


def test_scalar_functions_at_their_tails() -> None:
    x = np.array([-1000.0, -90.0, -1.0, 0.0, 1.0, 90.0, 1000.0])
    want = [1 / (1 + math.exp(-v)) if v > -700 else 0.0 for v in x]
    np.testing.assert_allclose(sigmoid(x), want, rtol=1e-14)
    np.testing.assert_allclose(silu(x), x * want, rtol=1e-14)
    soft = [math.log1p(math.exp(v)) if v < 700 else v for v in x]
    np.testing.assert_allclose(softplus(x), soft, rtol=1e-14)


def test_norms_against_loops() -> None:
    draw = np.random.default_rng(1)
    x, z, w = draw.standard_normal((3, 2, 5))
    w = w[0]
    for row in range(2):
        square = sum(float(v) ** 2 for v in x[row])
        for i in range(5):
            unit = x[row, i] / math.sqrt(square / 5 + 1e-6)
            gate = z[row, i] / (1 + math.exp(-z[row, i]))
            assert rms1(x, w, 1e-6)[row, i] == pytest.approx(unit * (1 + w[i]), rel=1e-13)
            gated = gated_norm(x, z, w, 1e-6)[row, i]
            assert gated == pytest.approx(unit * w[i] * gate, rel=1e-13)
            assert l2(x)[row, i] == pytest.approx(x[row, i] / math.sqrt(square + 1e-6), rel=1e-13)


def test_axes_of_the_large_model() -> None:
    chosen = rope.axes(LARGE)
    assert np.bincount(chosen).tolist() == [11, 11, 10]
    assert chosen[[0, 1, 2, 29, 30, 31]].tolist() == [0, 1, 2, 2, 0, 1]
    # Short sections end before the pairs do, and the rest is temporal.
    short = dataclasses.replace(TINY, mrope_section=(5, 2, 1))
    assert rope.axes(short).tolist() == [0, 1, 2, 0, 1, 0, 0, 0]


def test_rotation_is_that_of_complex_numbers() -> None:
    draw = np.random.default_rng(2)
    x = draw.standard_normal((3, 2, 32))
    positions = np.array([0, 5, 262143])
    cosine, sine = rope.tables(TINY, rope.triples(positions, 3))
    y = rope.rotate(x, cosine, sine)
    for t, p in enumerate(positions):
        for j in range(8):
            turn = np.exp(1j * p * 1e7 ** (-2 * j / 16))
            want = (x[t, :, j] + 1j * x[t, :, j + 8]) * turn
            np.testing.assert_allclose(y[t, :, j] + 1j * y[t, :, j + 8], want, atol=1e-9)
    np.testing.assert_array_equal(y[..., 16:], x[..., 16:])


def test_yarn_of_the_large_model() -> None:
    plain, one = rope.inv_freq(LARGE)
    found, factor = rope.inv_freq(dataclasses.replace(LARGE, yarn=Yarn(4.0, 262144)))
    assert one == 1.0
    assert factor == pytest.approx(1.1386294, abs=5e-8)
    np.testing.assert_array_equal(found[:15], plain[:15])
    np.testing.assert_allclose(found[22:], plain[22:] / 4, rtol=1e-15)
    assert found[18] == pytest.approx(plain[18] * (0.5 + 0.5 / 4), rel=1e-14)


def test_convolution_against_loops() -> None:
    draw = np.random.default_rng(3)
    w, old, u = (draw.standard_normal(s) for s in ((5, 4), (3, 5), (2, 5)))
    sums, carried = delta.causal_conv(u, old, w)
    columns = np.concatenate([old, u])
    for t in range(2):
        for c in range(5):
            want = sum(w[c, i] * columns[t + i, c] for i in range(4))
            assert sums[t, c] == pytest.approx(want, rel=1e-13)
    np.testing.assert_array_equal(carried, columns[-3:])


def test_attention_against_loops() -> None:
    draw = np.random.default_rng(4)
    q, k, v = (draw.standard_normal(s) for s in ((2, 6, 4), (5, 2, 4), (5, 2, 4)))
    got, _ = attend(q, k, v)
    for t in range(2):
        for head in range(6):
            rows = range(5 - 2 + t + 1)
            weights = [math.exp(q[t, head] @ k[u, head // 3] / 2.0) for u in rows]
            want = sum(e * v[u, head // 3] for u, e in zip(rows, weights, strict=True))
            np.testing.assert_allclose(got[t, head], want / sum(weights), rtol=1e-12)


def test_parameter_counts_of_the_large_model() -> None:
    tensors = LARGE.tensors()
    matrices = {name: math.prod(shape) for name, shape in tensors.items() if len(shape) == 2}
    assert len(tensors) == 851 + 15
    assert sum(n for name, n in matrices.items() if ".layers." in name and "mtp" not in name) == (
        24_350_556_160
    )
    assert sum(n for name, n in matrices.items() if name.startswith("mtp.")) == 424_673_280
    # The published file of the MTP head is 849,398,784 bytes of BF16.
    whole = sum(math.prod(shape) for name, shape in tensors.items() if name.startswith("mtp."))
    assert 2 * whole == 849_398_784
