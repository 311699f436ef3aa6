"""Protects `encode_nvfp4`: codes, block scales, and which groups are refused, to the bit."""

import numpy as np
import pytest

from ptx.encode_cases import MAX_FLOAT, NOT_FINITE
from ptx.encode_nvfp4.op import OP
from ptx.feasibility.codes import E2M1, e2m1
from ptx.fp8 import round_to_e4m3, widen_e4m3
from ptx.nvfp4 import BLOCK, GLOBAL_TIMES_MAX, round_to_e2m1, widen_e2m1
from ptx.op import OpError

# N, K: 4 groups; one group more than a block's 128 threads take at once.
SHAPES = [(1, 64), (3, 192), (2, 2112)]
# Bits of 1/8, of the smallest and of the largest finite number of e4m3, and of its NaN.
EIGHTH, LEAST, MOST, NAN = 0x20, 0x01, 0x7E, 0x7F


def _arguments(w, global_scale=None):
    n_rows, width = w.shape
    if global_scale is None:
        global_scale = GLOBAL_TIMES_MAX / np.abs(w[np.isfinite(w)]).max()
    return {
        "w": w, "global_scale": np.array([global_scale], np.float32),
        "codes": np.full((n_rows, width // 2), 0x88, np.uint8),
        "scales": np.full((n_rows, width // BLOCK), 0x7F, np.uint8), "bad": np.full(n_rows, 99),
    }  # fmt: skip


def _random(n_rows, width):
    """f32 [N, K]; neighbouring groups differ in size, so that one read for another is far off."""
    rng = np.random.default_rng(n_rows + width)
    w = rng.standard_normal((n_rows, width // BLOCK, BLOCK))
    w *= np.exp2(rng.integers(-12, 1, (n_rows, width // BLOCK, 1)))
    return w.reshape(n_rows, width).astype(np.float32)


def _groups(*groups):
    """f32 [1, K] of groups of up to 16 numbers, with zeros up to K % 64 == 0."""
    w = np.zeros((-(-len(groups) // 4) * 4, BLOCK), np.float32)
    for row, group in zip(w, groups, strict=False):
        row[: len(group)] = group
    return w.reshape(1, -1)


def _every_scale():
    """Groups whose (a / 6) global_scale, of 1, is every e4m3, every middle, and one float32 off."""
    values = widen_e4m3(np.arange(0x7F))
    middles = (values[:-1] + values[1:]) / 2
    a = 6 * np.concatenate([values, middles, [460, 464, 500, 1e9]]).astype(np.float32)
    near = np.concatenate([a, np.nextafter(a, np.float32(0)), np.nextafter(a, np.float32(np.inf))])
    return _groups(*([x / 3, -x] for x in near))


def _every_code(scale):
    """Groups with 6 x scale, and w / scale at every e2m1, every middle, and one float32 off."""
    cells = np.concatenate([E2M1, (E2M1[:-1] + E2M1[1:]) / 2]).astype(np.float32)
    cells = cells * np.float32(scale)
    near = [cells, np.nextafter(cells, np.float32(0)), np.nextafter(cells, np.float32(9e9))]
    edges = [np.minimum(x, np.float32(6 * scale)) for x in near]
    return _groups(*([sign * 6 * scale, *(sign * x)] for x in edges for sign in (1, -1)))


def _edges():
    """Zeros, subnormals, the largest numbers, and groups that cannot be encoded."""
    groups = [
        [], [-0.0] * 16, [1e-45, -1e-45], [1e-39], [1e-3, -1e-3], [MAX_FLOAT, -1.0], [6e-4],
        [6 * 2.0**-10], [np.nextafter(np.float32(6 * 2.0**-10), np.float32(1))],
    ]
    rows = [_groups(*groups, *[[float(i)] for i in range(7)])]
    for bits in NOT_FINITE.values():
        for places in ([0], [255], [200, 65], range(256)):
            w = np.arange(256, dtype=np.float32)[None].copy()
            w.view(np.uint32)[0, list(places)] = bits
            rows.append(w)
    return np.concatenate(rows)


def _plain_loop(w, factor):
    scales = np.zeros((len(w), w.shape[1] // BLOCK), np.uint8)
    q, bad = np.zeros(w.shape, np.uint8), [-1] * len(w)
    for n, r in np.ndindex(*scales.shape):
        cells = w[n, BLOCK * r : BLOCK * (r + 1)]
        if not np.isfinite(cells).all():
            scales[n, r] = NAN
            bad[n] = r if bad[n] < 0 else bad[n]
            continue
        a = max(abs(x) for x in cells)
        with np.errstate(over="ignore"):
            scales[n, r] = round_to_e4m3(np.array([a / np.float32(6) * factor]))[0] or EIGHTH
            divisor = widen_e4m3(scales[n, r]) / factor
            q[n, BLOCK * r : BLOCK * (r + 1)] = [round_to_e2m1(x / divisor) for x in cells]
    return q[:, 0::2] | q[:, 1::2] << 4, scales, bad


@pytest.mark.parametrize("global_scale", [1, 0.3, 1e30, 1e-30])
def test_against_a_plain_loop(bench, global_scale):
    for w in (_random(2, 128), _edges()[:8]):
        codes, scales, bad = _plain_loop(w, np.float32(global_scale))
        got = bench.run(OP, **_arguments(w, global_scale))
        assert (got["codes"] == codes).all()
        assert (got["scales"] == scales).all()
        assert got["bad"].tolist() == bad


def test_codes_have_the_values_of_the_format():
    pairs = np.arange(256, dtype=np.uint8)[None]
    both = np.stack([e2m1(pairs & 15), e2m1(pairs >> 4)], axis=-1).reshape(1, -1)
    assert (widen_e2m1(pairs) == both).all()
    assert round_to_e2m1(e2m1(np.arange(16)) + 0.0).tolist() == [*range(8), 0, *range(9, 16)]


def test_a_matrix_comes_back_within_half_a_step(bench):
    w = _random(4, 256)
    given = _arguments(w)
    got = bench.run(OP, **given)
    scales = np.repeat(widen_e4m3(got["scales"]), BLOCK, axis=1)
    back = widen_e2m1(got["codes"]) * scales / given["global_scale"]
    largest = np.repeat(np.abs(w).reshape(4, -1, BLOCK).max(axis=2), BLOCK, axis=1)
    # The widest step of e2m1 is 2 of 6, and a scale may be a sixteenth too small.
    assert (np.abs(back - w) <= largest * (1 / 6 + 1 / 15)).all()
    assert (got["scales"] == MOST).any()


@pytest.mark.parametrize(("n_rows", "width"), SHAPES)
def test_kernels(kernels, n_rows, width):
    for bench in kernels(OP):
        bench.check(OP, **_arguments(_random(n_rows, width)))


# Of numpy, about the signalling NaN among the edges.
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("global_scale", [1, 0.3, 1e30, 1e-30])
def test_kernels_at_every_edge(kernels, global_scale):
    for bench in kernels(OP):
        bench.check(OP, **_arguments(_every_scale(), global_scale))
        bench.check(OP, **_arguments(_edges(), global_scale))


@pytest.mark.parametrize("scale", [1, 1.125, 240])
def test_kernels_on_every_code_and_tie(kernels, scale):
    for bench in kernels(OP):
        for global_scale in (1, 0.37):
            bench.check(OP, **_arguments(_every_code(scale), global_scale))


def test_rows_do_not_depend_on_the_others(bench):
    given = _arguments(_edges(), 1)
    rows = tuple(name for name in given if name != "global_scale")
    bench.check_rows_alone(OP, rows, **given)


def test_kernels_rows_alone(kernels):
    given = _arguments(_edges()[:6], 1)
    rows = tuple(name for name in given if name != "global_scale")
    for bench in kernels(OP):
        bench.check_rows_alone(OP, rows, **given)


def test_by_hand(bench):
    groups = [6, -3, 0.25, 0.26, -0.75, 2.5, 5, -6], [0.5, -0.5, 0.25], [0, -0.0], [np.nan, 1]
    got = bench.run(OP, **_arguments(_groups(*groups), 1))
    # The scale is 1 for the first group, and for the second 0.5 / 6 rounded to 11 / 128.
    assert got["scales"].tolist() == [[0x38, 0x1B, EIGHTH, NAN]]
    assert got["codes"][0, :4].tolist() == [0xD7, 0x10, 0x4A, 0xF6]
    assert got["codes"][0, 8:10].tolist() == [0xF7, 0x05]
    assert got["codes"][0, 16:].tolist() == [0x80, *[0] * 15]
    assert got["bad"].tolist() == [3]


def test_by_hand_in_kernels(kernels):
    for bench in kernels(OP):
        test_by_hand(bench)


def test_shapes_that_disagree_are_refused(bench):
    given = _arguments(_random(2, 192))
    with pytest.raises(OpError, match="needs K = 16 R, found"):
        bench.run(OP, **{**given, "scales": given["scales"][:, :8]})
    with pytest.raises(OpError, match="needs one global_scale, found"):
        bench.run(OP, **{**given, "global_scale": np.ones(2)})
    with pytest.raises(OpError, match="needs K % 64 == 0, found N=1 K=96"):
        bench.run(OP, **_arguments(np.ones((1, 96))))
