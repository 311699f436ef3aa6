"""Protects conversions: small formats exhaustively, the others against struct and fractions."""

import math
import struct
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

RNG = np.random.default_rng(3)


def small(code, n_exponent, n_mantissa, bias):
    """The value of a sign, exponent, mantissa code; no infinities, no NaN."""
    sign = -1.0 if code >> (n_exponent + n_mantissa) else 1
    exponent = code >> n_mantissa & ((1 << n_exponent) - 1)
    mantissa = code & ((1 << n_mantissa) - 1)
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - n_mantissa)
    return sign * (1 + mantissa / (1 << n_mantissa)) * 2.0 ** (exponent - bias)


def e4m3(code):
    return math.nan if code & 0x7F == 0x7F else small(code, 4, 3, 7)


def e5m2(code):
    if code & 0x7F > 0x7C:
        return math.nan
    return math.inf * (-1 if code >> 7 else 1) if code & 0x7F == 0x7C else small(code, 5, 2, 15)


def e2m1(code):
    return small(code, 2, 1, 1)


DECODERS = {"e4m3": e4m3, "e5m2": e5m2}


def same(x, y):
    return (math.isnan(x) and math.isnan(y)) or (x == y and math.copysign(1, x) ==
                                                 math.copysign(1, y))


def nearest(value, table):
    """The code whose value is nearest, ties to the even code; `table` lists non-negative codes."""
    size = abs(Fraction(value))
    best = min(table, key=lambda code: (abs(Fraction(table[code]) - size), code & 1))
    return best


def test_every_f16_widens(bench):
    codes = np.arange(65536, dtype=np.uint16)
    got = bench.evaluate("cvt.f32.f16 d, a;", "f32", ("f16", codes)).view(np.float32)
    for code, value in zip(codes, got, strict=True):
        assert same(float(value), struct.unpack("<e", struct.pack("<H", int(code)))[0])


def test_every_bf16_widens_and_comes_back(bench):
    codes = np.arange(65536, dtype=np.uint16)
    got = bench.evaluate("cvt.f32.bf16 d, a;", "f32", ("bf16", codes))
    numbers = (codes & 0x7FFF) <= 0x7F80
    assert np.array_equal(got[numbers], codes[numbers].astype(np.uint32) << 16)
    back = bench.evaluate("cvt.rn.bf16.f32 d, a;", "bf16", ("f32", got))
    assert np.array_equal(back[numbers], codes[numbers])
    assert (back[~numbers] == 0x7FFF).all()


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_f32_to_halves(bench, name, mode):
    bits = np.concatenate([
        RNG.integers(0, 2**32, 3000, np.uint32),
        np.array([0x477FE000, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0x7F7FFFFF,
                  0x7F7F7FFF, 0x7F7F8000, 0x00008000, 0x00018000, 0x38800000], np.uint32),
        (RNG.standard_normal(2000) * 2.0 ** RNG.integers(-26, 17, 2000)).astype("f4").view("u4"),
    ])
    bits = bits[np.isfinite(bits.view(np.float32))]
    got = bench.evaluate(f"cvt.{mode}.{name}.f32 d, a;", name, ("f32", bits))
    digits, low, top = (11, -14, 65504.0) if name == "f16" else (8, -126, 255 * 2.0**120)
    for x, y in zip(bits.view(np.float32), got, strict=True):
        exact = Fraction(float(x))
        exponent = max(math.frexp(float(x))[1] - 1, low)
        step = Fraction(2) ** (exponent - digits + 1)
        count = round(exact / step) if mode == "rn" else math.trunc(exact / step)
        want = float(count * step)
        if abs(want) > top:
            want = math.copysign(math.inf if mode == "rn" else top, want)
        value = (struct.unpack("<e", struct.pack("<H", int(y)))[0] if name == "f16" else
                 struct.unpack("<f", struct.pack("<I", int(y) << 16))[0])
        assert value == want, float(x)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_every_fp8_pair_widens(bench, name):
    codes = np.arange(65536, dtype=np.uint16)
    got = bench.evaluate(f"cvt.rn.f16x2.{name}x2 d, a;", "f16x2", ("u16", codes))
    halves = got.view(np.float16).reshape(-1, 2)
    for code, (low, high) in zip(codes, halves, strict=True):
        assert same(float(low), DECODERS[name](int(code) & 255))
        assert same(float(high), DECODERS[name](int(code) >> 8))


def test_every_e2m1_pair_widens(bench):
    codes = np.arange(256, dtype=np.uint8)
    got = bench.evaluate("cvt.rn.f16x2.e2m1x2 d, a;", "f16x2", ("u8", codes))
    for code, (low, high) in zip(codes, got.view(np.float16).reshape(-1, 2), strict=True):
        assert same(float(low), e2m1(int(code) & 15))
        assert same(float(high), e2m1(int(code) >> 4))


@pytest.mark.parametrize(("name", "decode", "n_codes"), [
    ("e4m3", e4m3, 0x7F), ("e5m2", e5m2, 0x7C), ("e2m1", e2m1, 8),
])
def test_f32_to_small_formats(bench, name, decode, n_codes):
    table = {code: decode(code) for code in range(n_codes)}
    values = sorted(table.values())
    # Each value, each middle between two, and their neighbours, and what lies past the end.
    middles = [(x + y) / 2 for x, y in pairwise(values)]
    points = np.array([*values, *middles, values[-1] * 1.1, values[-1] * 100, 3e38], np.float32)
    points = np.concatenate([points, np.nextafter(points, np.float32(0)),
                             np.nextafter(points, np.float32(np.inf))])
    points = np.concatenate([points[np.isfinite(points)], -points[np.isfinite(points)],
                             np.array([np.inf], np.float32)])
    nan = np.full(len(points), np.nan, np.float32)
    shift = 4 if name == "e2m1" else 8
    word = "u8" if name == "e2m1" else "u16"
    got = bench.evaluate(f"cvt.rn.satfinite.{name}x2.f32 d, a, b;", word, ("f32", points),
                         ("f32", nan))
    nan_code = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m1": 7}[name]
    sign = 1 << (shift - 1)
    for x, y in zip(points, got, strict=True):
        limit = min(abs(float(x)), values[-1])
        want = nearest(limit, table) | (sign if math.copysign(1, x) < 0 else 0)
        assert int(y) >> shift == want, float(x)
        assert int(y) & ((1 << shift) - 1) == nan_code


def test_e8m0(bench):
    x = np.array([1.0, 1.5, 2.0, 3.0, 0.75, 2.0**-127, np.nan, 0.0], np.float32)
    one = np.ones(8, np.float32)
    down = bench.evaluate("cvt.rz.satfinite.ue8m0x2.f32 d, a, b;", "u16", ("f32", x), ("f32", one))
    up = bench.evaluate("cvt.rp.satfinite.ue8m0x2.f32 d, a, b;", "u16", ("f32", x), ("f32", one))
    assert (down >> 8).tolist() == [127, 127, 128, 128, 126, 0, 255, 0]
    assert (up >> 8).tolist() == [127, 128, 128, 129, 127, 0, 255, 0]
    assert set((down & 255).tolist()) == {127}


def test_packed_conversion_puts_the_first_operand_on_top(bench):
    a, b = np.array([1.0], np.float32), np.array([2.0], np.float32)
    got = bench.evaluate("cvt.rn.bf16x2.f32 d, a, b;", "bf16x2", ("f32", a), ("f32", b))
    assert got.tolist() == [0x3F804000]


def test_tf32(bench):
    a = np.array([0x3F801000, 0x3F800FFF, 0xBF801000], np.uint32)
    got = bench.evaluate("cvt.rna.tf32.f32 d, a;", "b32", ("f32", a))
    assert got.tolist() == [0x3F802000, 0x3F800000, 0xBF802000]


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("type_name", ["s32", "u32", "s64", "u64", "s16", "u16"])
def test_float_to_integer_saturates(bench, mode, type_name):
    x = np.concatenate([RNG.standard_normal(500) * 2.0 ** RNG.integers(-2, 70, 500),
                        [0.5, 1.5, 2.5, -0.5, -1.5, np.inf, -np.inf, np.nan, 2147483647.5,
                         9.3e18, -9.3e18, 1.9e19]])
    got = bench.evaluate(f"cvt.{mode}.{type_name}.f64 d, a;", type_name, ("f64", x))
    n_bits, is_signed = int(type_name[1:]), type_name[0] == "s"
    low, high = (-(1 << (n_bits - 1)), (1 << (n_bits - 1)) - 1) if is_signed else (
        0, (1 << n_bits) - 1)
    rounding = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode]
    for value, y in zip(x, got, strict=True):
        if math.isnan(value):
            want = 0
        elif math.isinf(value):
            want = high if value > 0 else low
        else:
            want = min(max(rounding(Fraction(value)), low), high)
        assert int(y) == want % (1 << n_bits), value


@pytest.mark.parametrize("type_name", ["s32", "u32", "s64", "u64", "s8", "u16"])
def test_integer_to_float(bench, type_name):
    n_bits = int(type_name[1:])
    a = RNG.integers(0, 2**64, 800, np.uint64, endpoint=False)
    a = (a >> np.uint64(64 - n_bits)).astype(f"uint{n_bits}")
    values = [int(v) - (1 << n_bits) if type_name[0] == "s" and int(v) >> (n_bits - 1) else int(v)
              for v in a]
    got = bench.evaluate(f"cvt.rn.f64.{type_name} d, a;", "f64", (type_name, a)).view(np.float64)
    assert got.tolist() == [float(v) for v in values]
    single = bench.evaluate(f"cvt.rn.f32.{type_name} d, a;", "f32", (type_name, a))
    for value, y in zip(values, single.view(np.float32), strict=True):
        low, high = (Fraction(float(np.nextafter(y, np.float32(to)))) for to in (-np.inf, np.inf))
        middle = abs(Fraction(float(y)) - value)
        assert middle <= abs(low - value)
        assert middle <= abs(high - value)
    if n_bits <= 32:
        down = bench.evaluate(f"cvt.rz.f32.{type_name} d, a;", "f32", (type_name, a))
        for value, y in zip(values, down.view(np.float32), strict=True):
            assert abs(float(y)) <= abs(value) < abs(float(np.nextafter(y, np.float32(
                math.copysign(np.inf, value))))) or value == float(y)


def test_integer_widths(bench):
    a = np.array([0x80, 0x7F, 0xFF, 0x01], np.uint8)
    got = bench.evaluate("cvt.s32.s8 d, a;", "s32", ("s8", a))
    assert got.view(np.int32).tolist() == [-128, 127, -1, 1]
    b = np.array([-5, 300, 70000, 2**31 - 1], np.int32)
    got = bench.evaluate("cvt.sat.u8.s32 h0, a; cvt.u32.u16 d, h0;", "u32", ("s32", b))
    assert got.tolist() == [0, 255, 255, 255]
    got = bench.evaluate("cvt.u8.u32 h0, a; cvt.u32.u16 d, h0;", "u32", ("s32", b))
    assert got.tolist() == [(-5) % 256, 300 % 256, 70000 % 256, 255]


def test_float_widths(bench):
    x = RNG.standard_normal(500) * 2.0 ** RNG.integers(-160, 130, 500)
    got = bench.evaluate("cvt.rn.f32.f64 d, a;", "f32", ("f64", x)).view(np.float32)
    with np.errstate(over="ignore"):
        assert np.array_equal(got, x.astype(np.float32))
    down = bench.evaluate("cvt.rz.f32.f64 d, a;", "f32", ("f64", x)).view(np.float32)
    assert (np.abs(down.astype(np.float64)) <= np.abs(x)).all()
    up = bench.evaluate("cvt.rpi.f32.f32 d, a;", "f32", ("f32", np.array([1.2, -1.2], "f4")))
    assert up.view(np.float32).tolist() == [2.0, -1.0]


def test_cheap_unpacking_of_int4(bench):
    """(a & 0x000F000F) ^ 0x64086408 is 1024 + (code + 8) in f16, and 0x4308 does it in bf16."""
    words = np.array([(x | y << 16) for x in range(16) for y in range(16)], np.uint32)
    got = bench.evaluate("lop3.b32 d, a, 0x000F000F, 0x64086408, 0x6A;", "b32", ("b32", words))
    code = np.where(words & 15 > 7, (words & 15).astype(int) - 16, words & 15)
    assert np.array_equal(got.view(np.float16)[::2], 1032.0 + code)
    got = bench.evaluate("lop3.b32 d, a, 0x000F000F, 0x43084308, 0x6A;", "b32", ("b32", words))
    assert np.array_equal((got << 16).view(np.float32), 136.0 + code)


def test_a_bf16_moves_into_f32_bit_by_bit(bench):
    codes = np.arange(65536, dtype=np.uint16)
    got = bench.evaluate("cvt.f32.bf16 d, a;", "f32", ("bf16", codes), target="sm_90a")
    assert np.array_equal(got, codes.astype(np.uint32) << 16)
