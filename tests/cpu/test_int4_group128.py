"""Owns the proof that int4 weights are packed, quantised and read as their format says."""

import numpy as np
import numpy.typing as npt
import pytest

from engine.artifacts.int4_group128 import INT4
from engine.errors import InvalidArgument, ModelError

Array = npt.NDArray[np.float32]


def bf16(bits: int) -> float:
    return float(np.array(bits << 16, np.uint32).view(np.float32))


def one_group(values: list[float], a: float) -> Array:
    """[8, 128] whose first group begins with the values and has `a`, which sets its scale."""
    w = np.zeros((8, 128), np.float32)
    w[0, : len(values)] = values
    w[0, -1] = a
    return w


def codes_of(codes: npt.NDArray[np.uint8], n: int) -> list[int]:
    """The first codes, taken apart one nibble at a time."""
    nibbles = [b >> shift & 15 for b in codes.flat[: (n + 1) // 2].tolist() for shift in (0, 4)]
    return [q - 16 if q > 7 else q for q in nibbles[:n]]


def test_packing_by_hand() -> None:
    codes, scales = INT4.quantise(one_group([1, -1, 7, -7, 0, 3, -4, 2], 7))
    assert scales[0, 0] == 0x3F80
    assert codes[0, :4].tobytes().hex(" ").upper() == "F1 97 30 2C"


def test_reading_by_hand() -> None:
    codes = np.zeros((8, 64), np.uint8)
    codes[0, :4] = list(bytes.fromhex("109F372D"))
    w = INT4.dequantise(codes, np.full((8, 1), 0x3F80, np.uint16))
    assert w[0, :8].tolist() == [0, 1, -1, -7, 7, 3, -3, 2]
    assert not w[0, 8:].any()
    assert not w[1:].any()


def test_rounding_is_half_to_even() -> None:
    values = [0.5, 1.5, 2.5, -0.5, -2.5, 6.5, -6.5, 3.49]
    codes, _ = INT4.quantise(one_group(values, 7))
    assert codes_of(codes, 8) == [0, 2, 2, 0, -2, 6, -6, 3]


@pytest.mark.parametrize(
    ("a", "bits", "s"),
    [(7, 0x3F80, 1), (3, 0x3EDB, 0.427734375), (1, 0x3E12, 0.142578125),
     (0.38, 0x3D5E, 0.05419921875), (0.1, 0x3C6A, 0.0142822265625),
     (0.001, 0x3916, 0.0001430511474609375)],
)  # fmt: skip
@pytest.mark.parametrize("sign", [1, -1])
def test_scales(a: float, bits: int, s: float, sign: int) -> None:
    codes, scales = INT4.quantise(one_group([], sign * a))
    assert scales[0, 0] == bits
    assert bf16(bits) == s
    assert codes[0, -1] == (0x70 if sign > 0 else 0x90)


def test_a_group_of_zeros_has_scale_one() -> None:
    w = one_group([], 7)
    w[1] = -0.0
    codes, scales = INT4.quantise(w)
    assert scales.tolist() == [[0x3F80]] * 8
    assert not codes[1:].any()


def test_codes_are_made_against_the_rounded_scale() -> None:
    codes, _ = INT4.quantise(one_group([1, -1, 0.5, 1 / 14], 1))
    assert codes_of(codes, 4) == [7, -7, 4, 1]


@pytest.mark.parametrize("shape", [(8, 128), (16, 384), (24, 5120), (1032, 256)])
def test_quantising_is_the_formula_and_a_fixed_point(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    w = rng.standard_normal(shape).astype(np.float32)
    w *= np.exp2(rng.integers(-90, 90, (shape[0], 1))).astype(np.float32)
    codes, scales = INT4.quantise(w)
    assert (codes.shape, scales.shape) == ((shape[0], shape[1] // 2), (shape[0], shape[1] // 128))
    for row, group in rng.integers(0, (shape[0], shape[1] // 128), (40, 2)).tolist():
        part = w[row, 128 * group : 128 * (group + 1)]
        s = np.float32(bf16(int(scales[row, group])))
        assert abs(float(s) * 7 / float(np.abs(part).max()) - 1) <= 2**-8
        expected = [max(-7, min(7, round(float(x / s)))) for x in part]
        at = 64 * group
        assert codes_of(codes[row, at : at + 64], 128) == expected
    again = INT4.dequantise(codes, scales)
    assert np.abs(again.reshape(-1, 128) - w.reshape(-1, 128)).max() <= np.abs(w).max() / 13
    for first, second in zip((codes, scales), INT4.quantise(again), strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_largest_code_is_reached_and_never_passed() -> None:
    """Groups whose scale is just about to be rounded up, or was just rounded up, for every BF16."""
    halves = np.arange(0x3F80, 0x4000) * 65536 + 32768
    a = (7 * halves.astype(np.uint32).view(np.float32).astype(np.float64)).astype(np.float32)
    for near in (np.nextafter(a, np.float32(0)), a, np.nextafter(a, np.float32(np.inf))):
        w = np.repeat(near, 128).reshape(128, 128)
        codes, _ = INT4.quantise(w)
        assert {codes_of(codes[i], 1)[0] for i in range(128)} == {7}


def test_every_scale_is_a_fixed_point() -> None:
    """Every normal BF16 as the scale of a group with all its codes, both orders."""
    # From 0x7E13 on, seven times the scale is beyond float32.
    bits = np.arange(0x0080, 0x7E10, dtype=np.uint16).reshape(-1, 8)
    row = np.array([0xF7, 0x91, 0x2E, 0xD3, 0x4C, 0xB5, 0x6A, 0x0F] * 8, np.uint8)
    for scales in (bits, bits[::-1]):
        codes = np.tile(row, (8, scales.shape[0]))
        again = INT4.quantise(INT4.dequantise(codes, scales.T))
        np.testing.assert_array_equal(again[0], codes)
        np.testing.assert_array_equal(again[1], scales.T)


@pytest.mark.parametrize(
    "shape",
    [(0, 128), (8, 0), (7, 128), (12, 128), (8, 64), (8, 129), (8, 192), (1024,), (1, 8, 128)],
)  # fmt: skip
def test_a_shape_that_does_not_suit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="does not suit int4_symmetric_group_bf16_scale"):
        INT4.quantise(np.zeros(shape, np.float32))


def test_another_dtype_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="from float32, not from float64"):
        INT4.quantise(np.zeros((8, 128)))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    w = np.ones((2056, 256), np.float32)
    w[2051, 130] = value
    with pytest.raises(ModelError, match=rf"element \[2051, 130\] is {value}, not finite"):
        INT4.quantise(w)


@pytest.mark.parametrize("a", [1e-45, 7 * 2.0**-127, 7 * 2.0**-126 * (1 - 2.0**-7)])
def test_a_scale_below_the_normal_ones_is_refused(a: float) -> None:
    w = np.ones((8, 256), np.float32)
    w[5, 128:] = a
    with pytest.raises(ModelError, match=r"row 5, group 1: .* below the smallest normal BF16"):
        INT4.quantise(w)


def test_the_ends_of_the_range_of_scales() -> None:
    # The second is half-way between the largest subnormal scale and the smallest normal one.
    smallest = 7 * 2.0**-126
    for a, bits in (
        (smallest, 0x0080),
        (smallest * (1 - 2.0**-8), 0x0080),
        (float(np.finfo(np.float32).max), 0x7E12),
    ):
        codes, scales = INT4.quantise(one_group([], a))
        assert scales[0, 0] == bits
        assert codes_of(codes[0, -1:], 2)[1] == 7


def test_the_invalid_nibble_is_found_wherever_it_is() -> None:
    codes, scales = INT4.quantise(np.ones((2056, 256), np.float32))
    INT4.check(codes, scales)
    for row, column in ((0, 0), (0, 255), (1023, 128), (2055, 254), (2055, 255)):
        bad = codes.copy()
        keep, put = (0xF0, 0x08) if column % 2 == 0 else (0x0F, 0x80)
        bad[row, column // 2] = bad[row, column // 2] & keep | put
        for read in (INT4.check, INT4.dequantise):
            with pytest.raises(ModelError, match=f"code of row {row}, column {column} is -8"):
                read(bad, scales)


@pytest.mark.parametrize("bits", [0x0000, 0x8000, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF])
def test_a_scale_that_is_not_positive_and_finite_is_refused(bits: int) -> None:
    codes, scales = INT4.quantise(np.ones((2056, 256), np.float32))
    scales[2053, 1] = bits
    for read in (INT4.check, INT4.dequantise):
        with pytest.raises(ModelError, match=f"row 2053, group 1 has the BF16 bits 0x{bits:04X}"):
            read(codes, scales)


def test_every_other_scale_is_read() -> None:
    bits = np.arange(1, 0x7F80, dtype=np.uint16)[None]
    codes = np.full((1, 64 * bits.size), 0x71, np.uint8)
    with np.errstate(over="ignore"):
        w = INT4.dequantise(codes, bits).reshape(-1, 128)
        s = (bits[0].astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(w[:, 0], s)
        np.testing.assert_array_equal(w[:, 127], s * np.float32(7))


def test_planes_that_disagree_are_refused() -> None:
    codes, scales = np.zeros((8, 64), np.uint8), np.ones((8, 2), np.uint16)
    for pair in ((codes, scales), (codes[:, :63], scales[:, :1]), (codes[:7], scales[:, :1])):
        with pytest.raises(InvalidArgument, match="disagree"):
            INT4.dequantise(*pair)
