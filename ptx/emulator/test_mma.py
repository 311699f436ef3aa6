"""Protects what each form of mma gives: small types code by code, sums in integers, scales.

It is long because each family of types has its own.
"""

import math
from itertools import product

import numpy as np
import pytest

from ptx.emulator.mma_cases import (
    N_BITS,
    SCALES,
    SMALL_FLOATS,
    a_element,
    b_element,
    c_words,
    line_of,
    packed,
    run,
    unpacked,
)

RNG = np.random.default_rng(12)


def small(code, n_exponent, n_mantissa, bias):
    """The value of a sign, exponent, mantissa code; no infinities, no NaN."""
    sign = -1.0 if code >> (n_exponent + n_mantissa) else 1.0
    exponent = code >> n_mantissa & ((1 << n_exponent) - 1)
    mantissa = code & ((1 << n_mantissa) - 1)
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - n_mantissa)
    return sign * (1 + mantissa / (1 << n_mantissa)) * 2.0 ** (exponent - bias)


def e5m2(code):
    if code & 0x7F >= 0x7C:
        return math.nan if code & 3 else math.copysign(math.inf, -(code >> 7))
    return small(code, 5, 2, 15)


def signed(code, n_bits):
    return code - (1 << n_bits) if code >> (n_bits - 1) else code


# All values of a type by code.
VALUES = {
    "e4m3": [math.nan if c & 0x7F == 0x7F else small(c, 4, 3, 7) for c in range(256)],
    "e5m2": [e5m2(c) for c in range(256)],
    "e3m2": [small(c, 3, 2, 3) for c in range(64)],
    "e2m3": [small(c, 2, 3, 1) for c in range(64)],
    "e2m1": [small(c, 2, 1, 1) for c in range(16)],
    "s8": [signed(c, 8) for c in range(256)], "u8": list(range(256)),
    "s4": [signed(c, 4) for c in range(16)], "u4": list(range(16)),
}
VALUES = {name: np.array(values) for name, values in VALUES.items()}
def in_bytes(codes, name):
    """Codes in bytes of their own, the bits around them at random."""
    shift, n_bits = {"e2m1": (2, 4), "e3m2": (0, 6), "e2m3": (0, 6)}.get(name, (0, 8))
    noise = RNG.integers(0, 256, codes.shape) & ~(((1 << n_bits) - 1) << shift)
    return (codes << shift) | noise


def every_pair(a, b, depth):
    """Stacks of A and B in which each pair of codes meets once, at changing k, zeros elsewhere."""
    n_a, n_b = len(VALUES[a]), len(VALUES[b])
    tiles = list(product(range(0, n_a, 16), range(0, n_b, 8)))
    left, right = np.zeros((len(tiles), 16, depth), int), np.zeros((len(tiles), depth, 8), int)
    for at, (row, column) in enumerate(tiles):
        k = at % depth
        left[at, :, k], right[at, k, :] = range(row, row + 16), range(column, column + 8)
    return left, right


def products(a, b, left, right):
    """The one product of each cell of `every_pair`, in float64."""
    x, y = VALUES[a][left.max(axis=2)], VALUES[b][right.max(axis=1)]
    with np.errstate(invalid="ignore"):
        return x[:, :, None] * y[:, None, :]


def registers(left, right, n_bits, depth):
    """Those of A and of B, for elements of so many bits."""
    kind, n = f"{'tf32' if n_bits == 32 else f'b{n_bits}'}k{depth}", depth // 2
    return packed(left, a_element, kind, n, n_bits), packed(right, b_element, kind, n // 2, n_bits)


def same(got, want):
    """Equal numbers; NaN is the canonical one."""
    bits = got.view(f"u{got.dtype.itemsize}")
    nan = np.isnan(want)
    canonical = 0x7FFF if got.dtype.itemsize == 2 else 0x7FFFFFFF
    return (bits[nan] == canonical).all() and np.array_equal(got[~nan], want[~nan])


def floats(bench, a, b, depth, d, kind=""):
    """Every pair of codes of two float types, against exact products rounded once."""
    left, right = every_pair(a, b, depth)
    want = products(a, b, left, right)
    n_bits = 8 if kind else N_BITS.get(a, 8)
    codes = (in_bytes(left, a), in_bytes(right, b)) if kind else (left, right)
    x, y = registers(*codes, n_bits, depth)
    n_c = 2 if d == "f16" else 4
    got = run(bench, line_of(a, b, d, depth, kind, n_bits=n_bits), x, y,
              np.zeros((len(x), n_c), np.uint32), n_c)
    dtype = np.float16 if d == "f16" else np.float32
    with np.errstate(over="ignore"):
        assert same(unpacked(got, dtype), want.astype(dtype))


@pytest.mark.parametrize("d", ["f32", "f16"])
@pytest.mark.parametrize("depth", [16, 32])
@pytest.mark.parametrize(("a", "b"), list(product(("e4m3", "e5m2"), repeat=2)))
def test_every_pair_of_fp8(bench, a, b, depth, d):
    floats(bench, a, b, depth, d)


@pytest.mark.parametrize("d", ["f32", "f16"])
@pytest.mark.parametrize(("a", "b"), list(product(SMALL_FLOATS, repeat=2)))
def test_every_pair_of_f8f6f4(bench, a, b, d):
    floats(bench, a, b, 32, d, ".kind::f8f6f4")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("a", "b"), [*product(("s8", "u8"), repeat=2),
                                      *product(("s4", "u4"), repeat=2)])
def test_every_pair_of_integers(bench, a, b, depth):
    n_bits = N_BITS.get(a, 8)
    depth = 128 * (depth + 1) // n_bits
    left, right = every_pair(a, b, depth)
    x, y = registers(left, right, n_bits, depth)
    got = run(bench, line_of(a, b, "s32", depth), x, y, np.zeros((len(x), 4), np.uint32))
    assert np.array_equal(unpacked(got, np.int32), products(a, b, left, right))


@pytest.mark.parametrize("mods", ["", ".satfinite"])
@pytest.mark.parametrize(("a", "b", "depth"), [
    ("s4", "s4", 32), ("u4", "s4", 32), ("s4", "u4", 64), ("u4", "u4", 64), ("s8", "u8", 16),
    ("u8", "u8", 32),
])
def test_sums_of_integers(bench, a, b, depth, mods):
    n_bits = N_BITS.get(a, 8)
    left, right = (RNG.integers(0, 1 << n_bits, shape) for shape in ((16, depth), (depth, 8)))
    c = RNG.integers(-2**31, 2**31, (16, 8))
    c[:4], c[4:8] = 2**31 - 1, -(2**31)
    x, y = registers(left, right, n_bits, depth)
    got = run(bench, line_of(a, b, "s32", depth, mods=mods), x, y, c_words(c.astype(np.int32)))
    want = VALUES[a][left] @ VALUES[b][right] + c
    if mods:
        want = np.clip(want, -2**31, 2**31 - 1)
    assert np.array_equal(unpacked(got, np.int32), want.astype(np.int64).astype(np.int32))


def moderate(name):
    """Codes whose products sum exactly in float64: no NaN, no infinity, few exponents."""
    values = VALUES[name]
    keep = np.isfinite(values) & (np.abs(np.nan_to_num(values, posinf=1e9)) < 500)
    keep &= (np.abs(values) > 1e-3) | (values == 0)
    return np.flatnonzero(keep)


@pytest.mark.parametrize("kind", ["", ".kind::f8f6f4"])
@pytest.mark.parametrize(("a", "b"), [("e4m3", "e5m2"), ("e5m2", "e5m2"), ("e3m2", "e2m1"),
                                      ("e2m3", "e4m3"), ("e2m1", "e2m3")])
def test_sums_of_small_floats(bench, a, b, kind):
    if not kind and {a, b} - {"e4m3", "e5m2"}:
        return
    left = RNG.choice(moderate(a), (16, 32))
    right = RNG.choice(moderate(b), (32, 8))
    c = RNG.standard_normal((16, 8)).astype(np.float32)
    codes = (in_bytes(left, a), in_bytes(right, b)) if kind else (left, right)
    x, y = registers(*codes, 8, 32)
    got = run(bench, line_of(a, b, "f32", 32, kind, n_bits=8), x, y, c_words(c))
    exact = (VALUES[a][left] @ VALUES[b][right]) + c.astype(np.float64)
    assert np.array_equal(unpacked(got), exact.astype(np.float32))


@pytest.mark.parametrize("depth", [4, 8])
def test_tf32(bench, depth):
    """11 significant bits count; the 13 below do not, whatever they hold."""
    left, right = (RNG.integers(-1023, 1024, shape) * 2.0 ** RNG.integers(-6, 7, shape)
                   for shape in ((16, depth), (depth, 8)))
    c = RNG.integers(-99, 99, (16, 8)).astype(np.float32)
    codes = [m.astype("f4").view("u4") | RNG.integers(0, 1 << 13, m.shape, np.uint32)
             for m in (left, right)]
    x, y = registers(*codes, 32, depth)
    got = run(bench, line_of("tf32", "tf32", "f32", depth, n_bits=32), x, y, c_words(c))
    assert np.array_equal(unpacked(got), (left @ right + c).astype(np.float32))


def test_tf32_specials(bench):
    words = np.array([[0x7F800000, 0xFF800000, 0x7FC00000, 0]], np.uint32).repeat(16, axis=0)
    one = np.full((4, 8), 0x3F800000, np.uint32)
    for keep, want in (((0,), np.inf), ((1,), -np.inf), ((2,), np.nan), ((0, 1), np.nan)):
        left = np.zeros_like(words)
        left[:, keep] = words[:, keep]
        x, y = registers(left, one, 32, 4)
        got = run(bench, line_of("tf32", "tf32", "f32", 4, n_bits=32), x, y,
                  np.zeros((32, 4), np.uint32))
        assert same(unpacked(got), np.full((16, 8), want))


def scale(code):
    return math.nan if code == 255 else 2.0 ** (code - 127)


@pytest.mark.parametrize("vector", ["", ".scale_vec::1X"])
@pytest.mark.parametrize(("byte_a", "thread_a", "byte_b", "thread_b"),
                         [(0, 0, 0, 0), (1, 1, 3, 2), (2, 0, 1, 3), (3, 1, 2, 1)])
def test_every_pair_of_ue8m0_scales(bench, byte_a, thread_a, byte_b, thread_b, vector):
    """1.5 scaled by every code times 1 scaled by every code; one scale for all of K."""
    tiles = list(product(range(0, 256, 16), range(0, 256, 8)))
    words = RNG.integers(0, 2**32, (len(tiles), 32, 2), np.uint32)
    scales = np.zeros((len(tiles), 16)), np.zeros((len(tiles), 8))
    for at, (row, column) in enumerate(tiles):
        for g in range(8):
            for half in range(2):
                lane, code = 4 * g + 2 * thread_a + half, row + g + 8 * half
                words[at, lane, 0] &= ~np.uint32(255 << 8 * byte_a)
                words[at, lane, 0] |= np.uint32(code << 8 * byte_a)
                scales[0][at, g + 8 * half] = scale(code)
            lane, code = 4 * g + thread_b, column + g
            words[at, lane, 1] &= ~np.uint32(255 << 8 * byte_b)
            words[at, lane, 1] |= np.uint32(code << 8 * byte_b)
            scales[1][at, g] = scale(code)
    left, right = np.zeros((len(tiles), 16, 32), int), np.zeros((len(tiles), 32, 8), int)
    left[:, :, 3] = int(np.flatnonzero(VALUES["e3m2"] == 1.5)[0])
    right[:, 3, :] = int(np.flatnonzero(VALUES["e2m1"] == 1.0)[0])
    x, y = registers(in_bytes(left, "e3m2"), in_bytes(right, "e2m1"), 8, 32)
    line = line_of("e3m2", "e2m1", "f32", 32, ".kind::mxf8f6f4", ".ue8m0",
                   f".block_scale{vector}", 8)
    line = line.replace(SCALES, f", s0, {{{byte_a}, {thread_a}}}, s1, {{{byte_b}, {thread_b}}}")
    got = run(bench, line, x, y, np.zeros((len(x), 4), np.uint32), extra=words.reshape(-1, 2))
    with np.errstate(over="ignore"):
        want = (1.5 * scales[0][:, :, None] * scales[1][:, None, :]).astype(np.float32)
    assert same(unpacked(got), want)


@pytest.mark.parametrize(("a", "b"), list(product(SMALL_FLOATS, repeat=2)))
def test_scaled_mixtures(bench, a, b):
    left, right = RNG.choice(moderate(a), (16, 32)), RNG.choice(moderate(b), (32, 8))
    codes = RNG.integers(110, 140, (2, 16))
    words = RNG.integers(0, 2**32, (32, 2), np.uint32) & ~np.uint32(255)
    for g in range(8):
        words[4 * g, 0] |= np.uint32(codes[0, g])
        words[4 * g + 1, 0] |= np.uint32(codes[0, g + 8])
        words[4 * g, 1] |= np.uint32(codes[1, g])
    x, y = registers(in_bytes(left, a), in_bytes(right, b), 8, 32)
    line = line_of(a, b, "f32", 32, ".kind::mxf8f6f4", ".ue8m0", ".block_scale", 8)
    got = run(bench, line, x, y, np.zeros((32, 4), np.uint32), extra=words)
    factors = 2.0 ** (codes - 127.0)
    want = (VALUES[a][left] @ VALUES[b][right]) * factors[0][:, None] * factors[1][:8]
    assert np.array_equal(unpacked(got), want.astype(np.float32))


@pytest.mark.parametrize("kind", [".kind::mxf4", ".kind::mxf4nvf4"])
def test_every_pair_of_e2m1_with_two_scales(bench, kind):
    """Both halves of K have a scale of their own; with .kind::mxf4 that need not be written."""
    left, right = every_pair("e2m1", "e2m1", 64)
    left, right = np.repeat(left, 32, axis=0), np.repeat(right, 32, axis=0)
    for at in range(len(left)):
        k = 2 * at % 64
        left[at], right[at] = np.roll(left[at], k, axis=1), np.roll(right[at], k, axis=0)
    words = np.full((32 * len(left), 2), 0x5A5A8281, np.uint32)  # 4, then 8
    x, y = registers(left, right, 4, 64)
    vector = "" if kind == ".kind::mxf4" else ".scale_vec::2X"
    line = line_of("e2m1", "e2m1", "f32", 64, kind, ".ue8m0", f".block_scale{vector}", 4)
    got = run(bench, line, x, y, np.zeros((len(x), 4), np.uint32), extra=words)
    upper = left.any(axis=1).argmax(axis=1) >= 32
    upper |= right.any(axis=2).argmax(axis=1) >= 32
    want = products("e2m1", "e2m1", left, right) * np.where(upper, 64.0, 16.0)[:, None, None]
    assert np.array_equal(unpacked(got), want)


def test_every_pair_of_ue4m3_scales(bench):
    """One block of 16 after the other has any scale, the other blocks have 1; 127 is no number."""
    tiles = list(product(range(0, 128, 16), range(0, 128, 8)))
    words = np.full((len(tiles), 32, 2), 0x38383838, np.uint32)
    left, right = np.zeros((len(tiles), 16, 64), int), np.zeros((len(tiles), 64, 8), int)
    for at, (row, column) in enumerate(tiles):
        block = at % 4
        left[at, :, 16 * block + 5], right[at, 16 * block + 5, :] = 3, 6  # 1.5 and 4
        for g in range(8):
            for lane, operand, code in ((4 * g, 0, row + g), (4 * g + 1, 0, row + g + 8),
                                        (4 * g, 1, column + g)):
                words[at, lane, operand] ^= np.uint32((0x38 ^ code) << 8 * block)
    x, y = registers(left, right, 4, 64)
    line = line_of("e2m1", "e2m1", "f32", 64, ".kind::mxf4nvf4", ".ue4m3",
                   ".block_scale.scale_vec::4X", 4)
    got = run(bench, line, x, y, np.zeros((len(x), 4), np.uint32), extra=words.reshape(-1, 2))
    scales = VALUES["e4m3"][:128]
    rows, columns = (np.array([scales[first : first + n] for first in firsts])
                     for firsts, n in zip(zip(*tiles, strict=True), (16, 8), strict=True))
    assert same(unpacked(got), 6 * rows[:, :, None] * columns[:, None, :])
