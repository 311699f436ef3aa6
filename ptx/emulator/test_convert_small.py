"""Protects cvt of 6-bit floats and of packed integers, and the roundings that cvt must have."""

import math
from itertools import pairwise, product

import numpy as np
import pytest

from ptx.emulator import EmulatorError

RNG = np.random.default_rng(31)


def small(code, n_mantissa, bias):
    """The value of a 6-bit code."""
    exponent, mantissa = (code & 31) >> n_mantissa, code & ((1 << n_mantissa) - 1)
    if exponent:
        size = (1 + mantissa / (1 << n_mantissa)) * 2.0 ** (exponent - bias)
    else:
        size = mantissa * 2.0 ** (1 - bias - n_mantissa)
    return math.copysign(size, -(code >> 5) or 1)


TABLES = {"e3m2": [small(c, 2, 3) for c in range(64)], "e2m3": [small(c, 3, 1) for c in range(64)]}


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("name", TABLES)
def test_every_pair_of_6_bits_widens(bench, name, relu):
    pairs = np.array([high << 8 | low for high, low in product(range(64), repeat=2)], np.uint16)
    got = bench.evaluate(f"cvt.rn{relu}.f16x2.{name}x2 d, a;", "f16x2", ("u16", pairs))
    for pair, (low, high) in zip(pairs, got.view(np.float16).reshape(-1, 2), strict=True):
        for code, value in ((int(pair) & 255, low), (int(pair) >> 8, high)):
            want = TABLES[name][code]
            want = max(want, 0.0) if relu else want
            assert float(value) == want
            assert relu or math.copysign(1, value) == math.copysign(1, want)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("name", TABLES)
def test_f32_to_6_bits(bench, name, relu):
    """Every value, every middle between two and its neighbours, and what saturates."""
    values = TABLES[name][:32]
    middles = [(x + y) / 2 for x, y in pairwise(values)]
    points = np.array([*values, *middles, values[-1] * 1.01, values[-1] * 100, np.inf], np.float32)
    points = np.concatenate([points, np.nextafter(points, np.float32(0)),
                             np.nextafter(points, np.float32(np.inf))])
    points = np.concatenate([points, -points])
    nan = np.full(len(points), np.nan, np.float32)
    got = bench.evaluate(f"cvt.rn.satfinite{relu}.{name}x2.f32 d, a, b;", "u16", ("f32", points),
                         ("f32", nan))
    for x, y in zip(points.tolist(), got.tolist(), strict=True):
        size = min(abs(x), values[-1])
        code = min(range(32), key=lambda c: (abs(values[c] - size), c & 1))
        want = code | (32 if math.copysign(1, x) < 0 else 0)
        if relu and want & 32:
            want = 0
        assert y >> 8 == want, x
        # NaN has no code: it is the largest number.
        assert y & 255 == 31


@pytest.mark.parametrize("name", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_packed_integers(bench, name):
    n_bits = int(name[1:])
    low, high = (0, (1 << n_bits) - 1) if name[0] == "u" else (
        -(1 << n_bits - 1), (1 << n_bits - 1) - 1)
    edges = [low - 1, low, low + 1, -1, 0, 1, high - 1, high, high + 1, 2**31 - 1, -(2**31)]
    a, b = (np.array(column, np.int32) for column in zip(*product(edges, repeat=2), strict=True))
    c = RNG.integers(0, 2**32, len(a), np.uint32)
    line = f"cvt.pack.sat.{name}.s32 d, a, b;"
    if n_bits < 16:
        line = f"cvt.pack.sat.{name}.s32.b32 d, a, b, c;"
    got = bench.evaluate(line, "u32", ("s32", a), ("s32", b), ("b32", c))
    for x, y, z, word in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        upper, lower = (min(max(v, low), high) % (1 << n_bits) for v in (x, y))
        above = z << 2 * n_bits if n_bits < 16 else 0
        assert word == (above | upper << n_bits | lower) % 2**32


@pytest.mark.parametrize("line", [
    "cvt.f16.f32 h, f;", "cvt.rni.f16.f32 h, f;", "cvt.rn.f32.f16 f, h;", "cvt.rn.f32.f32 f, f;",
    "cvt.s32.f32 r, f;", "cvt.rn.s32.f32 r, f;", "cvt.f32.s32 f, r;", "cvt.rni.f32.s32 f, r;",
    "cvt.rn.s32.u32 r, r;", "cvt.rna.f16.f32 h, f;", "cvt.tf32.f32 r, f;",
    "cvt.rn.relu.f16.f64 h, e;", "cvt.rn.satfinite.f16.bf16 h, h;", "cvt.rn.sat.bf16.f32 h, f;",
    "cvt.rn.ftz.f16.f64 h, e;", "cvt.rn.e4m3x2.f32 h, f, f;",
    "cvt.rz.satfinite.e4m3x2.f32 h, f, f;",
    "cvt.rn.satfinite.e4m3x2.bf16x2 h, r;", "cvt.rn.satfinite.e3m2x2.f16x2 h, r;",
    "cvt.rn.satfinite.f16x2.e4m3x2 r, h;", "cvt.rn.satfinite.ue8m0x2.f32 h, f, f;",
    "cvt.rz.relu.ue8m0x2.f32 h, f, f;", "cvt.pack.u8.s32.b32 r, r, r, r;",
    "cvt.pack.sat.u8.s32 r, r, r;", "cvt.pack.sat.u16.s32.b32 r, r, r, r;",
    "cvt.pack.sat.u8.u32.b32 r, r, r, r;",
])
def test_what_the_isa_lacks_is_refused(bench, line):
    body = (".reg .b16 h; .reg .b32 r; .reg .f32 f; .reg .f64 e;\nmov.b16 h, 0; mov.b32 r, 0;\n"
            f"mov.f32 f, 0f00000000; mov.f64 e, 0d0000000000000000;\n{line}\nret;")
    with pytest.raises(EmulatorError) as found:
        bench.kernel(body, {}, target="sm_120a")
    assert found.value.kind == "subset"
    assert found.value.text == line[:-1]


@pytest.mark.parametrize(("line", "least"), [
    ("cvt.f32.bf16 f, h;", 80), ("cvt.rn.f16x2.f32 r, f, f;", 80), ("cvt.rn.bf16.s32 h, r;", 90),
    ("cvt.rn.bf16.f32 h, f;", 80), ("cvt.rn.relu.f16.f32 h, f;", 80), ("cvt.rn.bf16.f16 h, h;", 90),
    ("cvt.rn.tf32.f32 r, f;", 90), ("cvt.rna.tf32.f32 r, f;", 80),
])
def test_what_a_target_lacks_is_refused(bench, line, least):
    body = (".reg .b16 h; .reg .b32 r; .reg .f32 f;\nmov.b16 h, 0; mov.b32 r, 0;\n"
            f"mov.f32 f, 0f00000000;\n{line}\nret;")
    bench.kernel(body, {}, target=f"sm_{least}{'a' if least == 90 else ''}")
    with pytest.raises(EmulatorError, match=f"needs sm_{least}"):
        bench.kernel(body, {}, target="sm_75" if least == 80 else "sm_80")
