"""Protects `encode_e4m3_rows`: codes, scales, and which rows are refused, to the bit."""

import numpy as np
import pytest

from ptx.encode_cases import MAX_FLOAT, NOT_FINITE, SMALLEST_NORMAL
from ptx.encode_e4m3_rows.op import OP
from ptx.feasibility.codes import e4m3
from ptx.fp8 import E4M3_MAGNITUDES, round_to_e4m3, widen_e4m3
from ptx.op import OpError

# N, K: a part of a warp's vectors, one past them, a row of whole vectors and one with a tail.
SHAPES = [(1, 64), (3, 192), (2, 256), (2, 1088), (1, 7232)]


def _arguments(w):
    n_rows = len(w)
    return {
        "w": w, "codes": np.full(w.shape, 0x7F, np.uint8), "scales": np.full(n_rows, np.nan),
        "bad": np.full(n_rows, 99),
    }  # fmt: skip


def _random(n_rows, width):
    """f32 [N, K]; rows differ in size, so that one read for another is far off."""
    rng = np.random.default_rng(n_rows + width)
    sizes = np.exp2(rng.integers(-40, 40, (n_rows, 1)))
    return (rng.standard_normal((n_rows, width)) * sizes).astype(np.float32)


def _row(values, largest, width=1024):
    """f32 [1, K]: the values, zeros, and at the end `largest`, which decides the scale."""
    assert len(values) < width
    w = np.zeros((1, width), np.float32)
    w[0, : len(values)] = values
    w[0, -1] = largest
    return w


def _every_code(scale=1.0):
    """Every value of e4m3 times a scale, every middle of two, and one float32 beside each."""
    middles = (E4M3_MAGNITUDES[:-1] + E4M3_MAGNITUDES[1:]) / 2
    cells = np.concatenate([E4M3_MAGNITUDES, middles]).astype(np.float32) * np.float32(scale)
    cells = np.concatenate([cells, np.nextafter(cells, np.float32(0)),
                            np.nextafter(cells, np.float32(np.inf))])
    cells = cells[cells <= np.float32(448) * np.float32(scale)]
    return _row(np.concatenate([cells, -cells]), 448 * scale, 1536)


def _edges():
    """Rows at the ends of what can be encoded, and rows that cannot be."""
    smallest = 448 * SMALLEST_NORMAL
    rows = [
        _row([0.0, -0.0], 0.0, 320), _row([-0.0], -0.0, 320),
        _row([-MAX_FLOAT, MAX_FLOAT / 2, 1.0, -1e-45], MAX_FLOAT, 320),
        _row([1e-45, -1e-45], 1.0, 320),
        # The scale is the smallest normal number, from above and from below.
        _row(np.arange(-9, 9) / 4 * SMALLEST_NORMAL, smallest, 320),
        _row(np.arange(-9, 9) / 4 * SMALLEST_NORMAL, smallest / 3, 320),
        _row([1e-45], 1e-45, 320), _row([-1e-40], 1e-39, 320),
    ]  # fmt: skip
    for bits in NOT_FINITE.values():
        for places in ([0], [319], [130, 5], [5, 130], range(320)):
            w = np.arange(320, dtype=np.float32)[None].copy()
            w.view(np.uint32)[0, list(places)] = bits
            rows.append(w)
    return np.concatenate(rows)


def _plain_loop(w):
    codes, scales, bad = np.zeros(w.shape, np.uint8), np.zeros(len(w), np.float32), [-1] * len(w)
    for n, row in enumerate(w):
        wrong = [k for k in range(len(row)) if not np.isfinite(row[k])]
        if wrong:
            codes[n], bad[n] = 0x7F, wrong[0]
            continue
        largest = max(abs(x) for x in row)
        scale = max(largest / np.float32(448), np.float32(SMALLEST_NORMAL)) if largest else 1.0
        scales[n] = scale
        codes[n] = [round_to_e4m3(np.array([x / scales[n]]))[0] for x in row]
    return codes, scales, bad


@pytest.mark.parametrize("w", [_random(3, 128), _edges()[:14]], ids=["random", "edges"])
def test_against_a_plain_loop(bench, w):
    codes, scales, bad = _plain_loop(w)
    got = bench.run(OP, **_arguments(w))
    assert (got["codes"] == codes).all()
    assert (got["scales"] == scales).all()
    assert got["bad"].tolist() == bad


def test_codes_have_the_values_of_the_format():
    assert np.array_equal(widen_e4m3(np.arange(256)), e4m3(np.arange(256)), equal_nan=True)


def test_every_code_and_every_tie(bench):
    w = _every_code()
    codes = bench.run(OP, **_arguments(w))["codes"][0]
    finite = np.arange(0x7F)
    assert codes[: len(finite)].tolist() == finite.tolist()
    # The middle between codes 2 i - 1 and 2 i goes up, the one above 2 i down; beside it, nearer.
    middles = codes[0x7F : 0x7F + 126]
    assert middles.tolist() == [i + i % 2 for i in range(126)]
    assert codes[253 + 127 : 253 + 253].tolist() == list(range(126))
    above = codes[2 * 253 : 3 * 253 - 1]
    assert above[126:].tolist() == list(range(1, 127))


@pytest.mark.parametrize(("n_rows", "width"), SHAPES)
def test_kernels(kernels, n_rows, width):
    given = _arguments(_random(n_rows, width))
    for bench in kernels(OP, **given):
        bench.check(OP, **given)


# Of numpy, about the signalling NaN among the edges.
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("scale", [1, 0.37, 2.0**-100])
def test_kernels_on_every_code_and_tie(kernels, scale):
    for bench in kernels(OP):
        bench.check(OP, **_arguments(_every_code(scale)))


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_kernels_at_every_edge(kernels):
    for bench in kernels(OP):
        bench.check(OP, **_arguments(_edges()))


def test_rows_do_not_depend_on_the_others(bench):
    given = _arguments(_edges())
    bench.check_rows_alone(OP, tuple(given), **given)


def test_kernels_rows_alone(kernels):
    given = _arguments(_edges()[4:11])
    for bench in kernels(OP, **given):
        bench.check_rows_alone(OP, tuple(given), **given)


def test_by_hand(bench):
    w = np.concatenate([_row([448, -224, 0.5, 2.0**-9, -(2.0**-10)], -448, 64),
                        _row([1, np.inf, np.nan], 1, 64)])
    got = bench.run(OP, **_arguments(w))
    assert got["codes"][0, :6].tolist() == [0x7E, 0xF6, 0x30, 0x01, 0x80, 0]
    assert got["codes"][0, -1] == 0xFE
    assert (got["codes"][1] == 0x7F).all()
    assert got["scales"].tolist() == [1, 0]
    assert got["bad"].tolist() == [-1, 1]


def test_by_hand_in_kernels(kernels):
    for bench in kernels(OP):
        test_by_hand(bench)


def test_the_ties_tell_division_from_a_reciprocal():
    """What the cases are for: times 1 / scale, some of their codes come out otherwise."""
    w = _every_code(0.37)
    scale = np.abs(w).max() / np.float32(448)
    by_reciprocal = round_to_e4m3(w * (np.float32(1) / scale))
    assert (by_reciprocal != round_to_e4m3(w / scale)).any()


def test_a_row_of_other_widths_is_refused(bench):
    with pytest.raises(OpError, match=r"needs K % 64 == 0, found N=1 K=96"):
        bench.run(OP, **_arguments(np.ones((1, 96))))


def test_a_launch_waits_for_the_one_before(kernels):
    """The scales of 64 rows are a row that the next launch encodes."""
    given = _arguments(_random(64, 64))
    for bench in kernels(OP, **given):
        want = bench.run(OP, w=bench.run(OP, **given)["scales"][None])
        rows, row = (
            {
                "w": bench.device.allocate((n, 64), "f32", "w"),
                "codes": bench.device.allocate((n, 64), "e4m3", "codes"),
                "scales": bench.device.allocate((1, n), "f32", "scales"),
                "bad": bench.device.allocate((n,), "i32", "bad"),
            }
            for n in (64, 1)
        )
        bench.device.upload(rows["w"], given["w"])
        bench.device.launch(bench.alone(OP), **rows)
        bench.device.launch(bench.alone(OP), **{**row, "w": rows["scales"]})
        for name, cells in want.items():
            assert bench.device.download(row[name]).tobytes() == cells.tobytes()
