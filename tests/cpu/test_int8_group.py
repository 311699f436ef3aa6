"""Owns the proof that int8 weights are packed, quantised and read as their format says."""

import numpy as np
import pytest

from engine.artifacts.int8_group import INT8
from engine.errors import InvalidArgument, ModelError


def test_codes_by_hand() -> None:
    w = np.zeros((8, 128), np.float32)
    w[0, :9] = [127, -127, 0.5, 1.5, 2.5, -0.5, -2.5, 126.5, -126.49]
    codes, scales = INT8.quantise(w)
    assert codes.dtype == np.int8
    assert scales.tolist() == [[0x3F80]] * 8
    assert codes[0, :9].tolist() == [127, -127, 0, 2, 2, 0, -2, 126, -126]
    assert codes[0, :2].tobytes() == b"\x7f\x81"
    assert not codes[1:].any()


@pytest.mark.parametrize(
    ("a", "bits", "s"), [(127, 0x3F80, 1), (1, 0x3C01, 0.00787353515625), (63.5, 0x3F00, 0.5)]
)
def test_scales(a: float, bits: int, s: float) -> None:
    """1 / 127 = 2^-7 (1 + 1/127): the nearest eight-bit fraction is 1 + 1/128."""
    w = np.full((8, 128), -a, np.float32)
    codes, scales = INT8.quantise(w)
    assert scales.tolist() == [[bits]] * 8
    assert set(codes.flat) == {-127}
    assert INT8.dequantise(codes, scales)[0, 0] == np.float32(-127 * s)


@pytest.mark.parametrize("shape", [(8, 128), (16, 384), (1032, 256)])
def test_quantising_is_the_formula_and_a_fixed_point(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    w = rng.standard_normal(shape).astype(np.float32)
    w *= np.exp2(rng.integers(-90, 90, (shape[0], 1))).astype(np.float32)
    codes, scales = INT8.quantise(w)
    s = (scales.astype(np.uint32) << 16).view(np.float32).repeat(128, axis=1)
    assert (np.abs(s.astype(np.float64) * 127 / _largest(w) - 1) <= 2**-8).all()
    expected = [max(-127, min(127, round(x))) for x in (w / s).flat]
    assert codes.reshape(-1).tolist() == expected
    again = INT8.dequantise(codes, scales)
    np.testing.assert_array_equal(again, codes * s)
    for first, second in zip((codes, scales), INT8.quantise(again), strict=True):
        np.testing.assert_array_equal(first, second)


def _largest(w: np.ndarray) -> np.ndarray:
    """The largest magnitude of its group, for every element, float64."""
    a = np.abs(w.astype(np.float64)).reshape(len(w), -1, 128).max(axis=2)
    return a.repeat(128, axis=1)


def test_the_largest_code_is_reached_and_never_passed() -> None:
    """Groups whose scale is just about to be rounded up, or was just rounded up, for every BF16."""
    halves = np.arange(0x3F80, 0x4000) * 65536 + 32768
    a = (127 * halves.astype(np.uint32).view(np.float32).astype(np.float64)).astype(np.float32)
    for near in (np.nextafter(a, np.float32(0)), a, np.nextafter(a, np.float32(np.inf))):
        w = np.repeat(near, 128).reshape(128, 128)
        codes, _ = INT8.quantise(w)
        assert {int(codes[i, 0]) for i in range(128)} == {127}


def test_every_scale_is_a_fixed_point() -> None:
    """Every normal BF16 as the scale of a group with all 255 codes between two groups."""
    # From 0x7C02 on, 127 times the scale is beyond float32.
    scales = np.arange(0x0080, 0x7C00, dtype=np.uint16).reshape(8, -1)
    row = np.concatenate((np.arange(-127, 1), np.arange(0, 128))).astype(np.int8)
    codes = np.tile(row, (8, scales.shape[1] // 2))
    again = INT8.quantise(INT8.dequantise(codes, scales))
    np.testing.assert_array_equal(again[0], codes)
    np.testing.assert_array_equal(again[1], scales)


@pytest.mark.parametrize("shape", [(4, 128), (8, 100), (8,), (8, 8, 128)])
def test_a_shape_that_does_not_suit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="does not suit int8_symmetric_group_bf16_scale"):
        INT8.quantise(np.zeros(shape, np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    w = np.ones((8, 128), np.float32)
    w[3, 4] = value
    with pytest.raises(ModelError, match=rf"element \[3, 4\] is {value}, not finite"):
        INT8.quantise(w)


def test_a_scale_below_the_normal_ones_is_refused() -> None:
    with pytest.raises(ModelError, match=r"row 0, group 0: .* over 127 is below the smallest"):
        INT8.quantise(np.full((8, 128), 1e-37, np.float32))


def test_the_invalid_code_and_scales_are_found() -> None:
    codes, scales = INT8.quantise(np.ones((1032, 256), np.float32))
    for row, column in ((0, 0), (511, 128), (1031, 255)):
        bad = codes.copy()
        bad[row, column] = -128
        with pytest.raises(ModelError, match=f"code of row {row}, column {column} is -128"):
            INT8.dequantise(bad, scales)
    scales[1030, 1] = 0
    with pytest.raises(ModelError, match="scale of row 1030, group 1"):
        INT8.check(codes, scales)
