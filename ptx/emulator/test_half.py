"""Protects halves and the modifiers that they share with f32: signs, order, comparisons, .ftz.

The ISA leaves open which NaN neg and abs give for halves, and when a result is flushed; what is
held here is an H200's answer (`test_card.py`). It is long because the ISA's rules are written out
once more.
"""

import math
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

from ptx.emulator import EmulatorError

RNG = np.random.default_rng(21)
ALL = np.arange(65536, dtype=np.uint16)
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}
# Zeros, subnormal and normal numbers, infinities, NaN of both signs.
EDGES = {
    "f16": [0, 1, 0x3FF, 0x400, 0x3BFF, 0x3C00, 0x4200, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF],
    "bf16": [0, 1, 0x7F, 0x80, 0x3F7F, 0x3F80, 0x4040, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF],
    "f32": [0, 1, 0x7FFFFF, 0x800000, 0x3F7FFFFF, 0x3F800000, 0x40400000, 0x7F7FFFFF, 0x7F800000,
            0x7F800001, 0x7FC00000, 0x7FFFFFFF],
}
N_BITS = {"f16": 16, "bf16": 16, "f32": 32}
FRACTION = {"f16": 10, "bf16": 7, "f32": 23}


def parts(code, name):
    """Sign, exponent field and fraction field."""
    n = FRACTION[name]
    top = N_BITS[name] - 1
    return code >> top, code >> n & ((1 << (top - n)) - 1), code & ((1 << n) - 1)


@cache
def value(code, name):
    """The number of a code, exactly; NaN and infinities as floats."""
    sign, exponent, fraction = parts(code, name)
    n, width = FRACTION[name], N_BITS[name] - 1 - FRACTION[name]
    bias = (1 << (width - 1)) - 1
    if exponent == (1 << width) - 1:
        return math.nan if fraction else math.copysign(math.inf, -sign or 1)
    size = Fraction(fraction + (1 << n if exponent else 0)) * Fraction(2) ** (
        max(exponent, 1) - bias - n)
    return -size if sign else size


def is_nan(code, name):
    return isinstance(value(code, name), float) and math.isnan(value(code, name))


def flushed(code, name):
    sign, exponent, _ = parts(code, name)
    return code if exponent else sign << (N_BITS[name] - 1)


def edge_pairs(name):
    top = 1 << (N_BITS[name] - 1)
    codes = [c for e in EDGES[name] for c in (e, e | top)]
    random = RNG.integers(0, 1 << N_BITS[name], (100, 2)).tolist()
    pairs = [*product(codes, codes), *map(tuple, random)]
    pairs += pairs[-(len(pairs) % 2) :] if len(pairs) % 2 else []
    a, b = np.array(pairs, np.uint64).T.astype(f"u{N_BITS[name] // 8}")
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def both_forms(bench, line, name, *columns):
    """Run a line on halves and on pairs of them, which must agree; f32 has no pairs here."""
    single = bench.evaluate(line.format(name), name, *[(name, c) for c in columns])
    if name != "f32":
        packed = bench.evaluate(line.format(f"{name}x2"), f"{name}x2",
                                *[(f"{name}x2", c.view(np.uint32)) for c in columns])
        assert packed.view(np.uint16).tolist() == single.tolist(), line
    return single


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("word", ["neg", "abs"])
def test_signs_of_every_half(bench, name, word):
    got = both_forms(bench, f"{word}.{{}} d, a;", name, ALL)
    sizes = ALL & 0x7FFF
    nan = sizes > (0x7C00 if name == "f16" else 0x7F80)
    assert (got[nan] == 0x7FFF).all()
    want = ALL ^ 0x8000 if word == "neg" else ALL & 0x7FFF
    assert np.array_equal(got[~nan], want[~nan])
    if name == "f16":
        got = both_forms(bench, f"{word}.ftz.{{}} d, a;", name, ALL)
        want = np.where(want & 0x7C00, want, want & 0x8000)
        assert np.array_equal(got[~nan], want[~nan])


def ordered(a, b, name, word, mods):
    """min and max as the ISA writes them, with its order of the zeros."""
    top = 1 << (N_BITS[name] - 1)
    if ".ftz" in mods:
        a, b = flushed(a, name), flushed(b, name)
    sign = (a ^ b) & top
    if ".xorsign" in mods:
        a, b = a & ~top, b & ~top
    if is_nan(a, name) and is_nan(b, name):
        return NAN[name]
    if ".NaN" in mods and (is_nan(a, name) or is_nan(b, name)):
        return NAN[name]
    if is_nan(a, name) or is_nan(b, name):
        result = b if is_nan(a, name) else a
    else:
        def key(code):
            return value(code, name), not code & top

        result = (min if word == "min" else max)(a, b, key=key)
    return (result & ~top) | sign if ".xorsign" in mods else result


@pytest.mark.parametrize("mods", ["", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs", ".ftz",
                                  ".ftz.NaN.xorsign.abs"])
@pytest.mark.parametrize("word", ["min", "max"])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_min_and_max(bench, name, word, mods):
    a, b = edge_pairs(name)
    line = f"{word}{mods}.{{}} d, a, b;"
    if name == "bf16" and ".ftz" in mods:
        with pytest.raises(EmulatorError, match=r"modifier \.ftz"):
            both_forms(bench, line, name, a, b)
        return
    got = both_forms(bench, line, name, a, b)
    want = [ordered(int(x), int(y), name, word, mods) for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want


@pytest.mark.parametrize("n", [1, 2, 7, 9, 31, 33])
@pytest.mark.parametrize("word", ["min", "max"])
@pytest.mark.parametrize(("name", "nan", "number"), [
    ("f32", 0x7F800001, 0xC0000000), ("f16", 0xFC01, 0xC000), ("bf16", 0x7F81, 0xC000),
])
def test_signalling_nan_in_every_lane(bench, name, nan, number, word, n):
    """However many lanes run together, the number is the result."""
    a, b = (np.full(n, code, f"u{N_BITS[name] // 8}") for code in (nan, number))
    for columns in ((a, b), (b, a)):
        got = bench.evaluate(f"{word}.{name} d, a, b;", name, *[(name, c) for c in columns])
        assert (got == number).all()


WORDS = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}


def holds(word, a, b, name, ftz):
    if ftz:
        a, b = flushed(a, name), flushed(b, name)
    unordered = is_nan(a, name) or is_nan(b, name)
    if word in ("num", "nan"):
        return unordered == (word == "nan")
    if unordered:
        return word.endswith("u")
    return bool(WORDS[word.removesuffix("u")](value(a, name), value(b, name)))


@pytest.mark.parametrize("ftz", ["", ".ftz"])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_comparisons_of_pairs(bench, name, ftz):
    """Each half has a predicate of its own, combined with a third one alike."""
    if name == "bf16" and ftz:
        return
    a, b = edge_pairs(name)
    inputs = [(f"{name}x2", c.view(np.uint32)) for c in (a, b)]
    for word in (*WORDS, *(f"{w}u" for w in WORDS), "num", "nan"):
        want = [holds(word, int(x), int(y), name, ftz) for x, y in zip(a, b, strict=True)]
        low, high = want[0::2], want[1::2]
        line = f"setp.{word}{ftz}.{name}x2 p|q, a, b; selp.u32 d, 1, 0, p; @q add.u32 d, d, 2;"
        got = bench.evaluate(line, "u32", *inputs)
        assert got.tolist() == [x + 2 * y for x, y in zip(low, high, strict=True)], word
        single = bench.evaluate(f"setp.{word}{ftz}.{name} p, a, b; selp.u32 d, 1, 0, p;", "u32",
                                (name, a), (name, b))
        assert single.tolist() == want, word
        words = bench.evaluate(f"set.{word}{ftz}.u32.{name}x2 d, a, b;", "u32", *inputs)
        assert words.view(np.uint16).tolist() == [0xFFFF * x for x in want], word
        one = {"f16": 0x3C00, "bf16": 0x3F80}[name]
        halves = bench.evaluate(f"set.{word}{ftz}.{name}x2.{name}x2 d, a, b;", "u32", *inputs)
        assert halves.view(np.uint16).tolist() == [one * x for x in want], word
        for out, true in (("u16", 0xFFFF), ("s32", 2**32 - 1), (name, one)):
            got = bench.evaluate(f"set.{word}{ftz}.{out}.{name} d, a, b;", out, (name, a),
                                 (name, b))
            assert got.tolist() == [true * x for x in want], (word, out)


@pytest.mark.parametrize(("mods", "f"), [
    (".and", lambda t, c: t and c), (".or", lambda t, c: t or c), (".xor", lambda t, c: t != c),
])
def test_combined_comparisons_of_pairs(bench, mods, f):
    a, b = edge_pairs("f16")
    inputs = [("f16x2", c.view(np.uint32)) for c in (a, b)]
    want = [holds("lt", int(x), int(y), "f16", False) for x, y in zip(a, b, strict=True)]
    # The third predicate: whether bit 0 of a is not set.
    third = [not int(x) & 1 for x in a[0::2]]
    start = ".reg .pred c; and.b32 d, a, 1; setp.eq.u32 c, d, 1;\n"
    line = f"setp.lt{mods}.f16x2 p|q, a, b, !c; selp.u32 d, 1, 0, p; @q add.u32 d, d, 2;"
    got = bench.evaluate(start + line, "u32", *inputs)
    assert got.tolist() == [f(x, c) + 2 * f(y, c)
                            for x, y, c in zip(want[0::2], want[1::2], third, strict=True)]
    sink = bench.evaluate(start + "setp.lt.f16x2 _|q, a, b; selp.u32 d, 1, 0, q;", "u32", *inputs)
    assert sink.tolist() == want[1::2]
    words = bench.evaluate(start + f"set.lt{mods}.s32.f16x2 d, a, b, !c;", "u32", *inputs)
    assert words.view(np.uint16).tolist() == [
        0xFFFF * f(x, third[at // 2]) for at, x in enumerate(want)]


def rounded(exact, name):
    """A Fraction or float to the nearest code, ties to even; overflow is infinity."""
    if isinstance(exact, float):
        return NAN[name] if math.isnan(exact) else (
            {"f16": 0x7C00, "bf16": 0x7F80}[name] | (0x8000 if exact < 0 else 0))
    sign = 0x8000 if exact < 0 else 0
    low, high = 0, {"f16": 0x7C00, "bf16": 0x7F80}[name]
    limit = value(high - 1, name)
    half = (limit - value(high - 2, name)) / 2
    size = abs(exact)
    if size >= limit + half:
        return sign | high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(middle, name) <= size else (low, middle)
    below, above = value(low, name), value(high, name) if high < {
        "f16": 0x7C00, "bf16": 0x7F80}[name] else limit + 2 * half
    up = size - below > above - size or (size - below == above - size and low & 1)
    return sign | (low + up)


def computed(f, codes, name, ftz, sat, relu):
    """The code of f of some codes where it is a number, with the modifiers; None where open."""
    codes = [flushed(c, name) if ftz else c for c in codes]
    values = [value(c, name) for c in codes]
    if any(isinstance(v, float) for v in values):
        return None
    exact = f(*values)
    code = rounded(exact, name)
    # As seen on an H200: tiny is what is below the smallest normal number when it has all its bits.
    if ftz and abs(value(rounded(exact * 2**14, name), name)) < 1:
        code &= 0x8000
    negative = bool(code & 0x8000)
    if sat:
        one = rounded(Fraction(1), name)
        code = 0 if negative else min(code, one)
    return 0 if relu and negative else code


@pytest.mark.parametrize("mods", ["", ".ftz", ".sat", ".ftz.sat", ".relu", ".ftz.relu"])
@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize(("word", "n", "f"), [
    ("add", 2, lambda a, b: a + b), ("sub", 2, lambda a, b: a - b), ("mul", 2, lambda a, b: a * b),
    ("fma", 3, lambda a, b, c: a * b + c),
])
def test_modifiers_of_arithmetic(bench, word, n, f, name, mods):
    line = f"{word}.rn{mods}.{{}} d, {', '.join('abc'[:n])};"
    columns = list(edge_pairs(name))
    near = RNG.integers(0, 1 << 16, (n, 150)).astype(np.uint16)
    if name == "f16":
        # Small ones, so that results are subnormal.
        near[0] &= 0x87FF
        near[1] &= 0xBFFF
    columns = [np.concatenate([c, near[at]]) for at, c in enumerate([*columns, columns[0]][:n])]
    allowed = {"f16": ("", ".ftz", ".sat", ".ftz.sat"), "bf16": ("",)}[name]
    allowed += {"f16": (".relu", ".ftz.relu"), "bf16": (".relu",)}[name] if word == "fma" else ()
    if mods not in allowed:
        with pytest.raises(EmulatorError, match="modifier"):
            both_forms(bench, line, name, *columns)
        return
    got = both_forms(bench, line, name, *columns)
    n_checked = 0
    for row, code in zip(zip(*columns, strict=True), got.tolist(), strict=True):
        want = computed(f, [int(c) for c in row], name, "ftz" in mods, "sat" in mods,
                        "relu" in mods)
        if want is not None:
            n_checked += 1
            # The sign of an exact zero is not decided here.
            assert code == want or (not code & 0x7FFF and not want & 0x7FFF), (row, code, want)
        elif any(is_nan(int(c), name) for c in row):
            assert code == (0 if "sat" in mods else 0x7FFF)
    assert n_checked > len(got) // 3


@pytest.mark.parametrize(("line", "name", "wide", "flushes"), [
    ("ex2.approx.{} d, a;", "f16", np.exp2, False), ("tanh.approx.{} d, a;", "f16", np.tanh, False),
    ("ex2.approx.ftz.{} d, a;", "bf16", np.exp2, True),
    ("tanh.approx.{} d, a;", "bf16", np.tanh, False),
])
def test_functions_of_every_half(bench, line, name, wide, flushes):
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("numpy's longdouble is no wider than float64 here")
    got = both_forms(bench, line, name, ALL)
    words = ALL.astype(np.uint32) << 16
    single = ALL.view(np.float16).astype(np.float32) if name == "f16" else words.view(np.float32)
    with np.errstate(all="ignore"):
        x = single.astype(np.longdouble)
        exact = wide(x)
        # Rounded here: numpy goes from longdouble to f16 by way of f64.
        numbers = np.isfinite(exact) & (exact != 0)
        _, exponent = np.frexp(np.where(numbers, exact, 1))
        low = {"f16": -14, "bf16": -126}[name]
        step = np.ldexp(np.longdouble(1), np.maximum(exponent - 1, low) - FRACTION[name])
        nearest = np.where(numbers, np.rint(exact / step) * step, exact).astype(np.float32)
        want = nearest.astype(np.float16).view(np.uint16)
        if name == "bf16":
            want = (nearest.view(np.uint32) >> 16).astype(np.uint16)
    if flushes:
        want = np.where(want & 0x7F80, want, 0)
    nan = np.isnan(x)
    assert (got[nan] == 0x7FFF).all()
    assert np.array_equal(got[~nan], want[~nan])


@pytest.mark.parametrize("line", [
    "neg.ftz.bf16 h0, h1;", "abs.ftz.f64 e, e;", "min.NaN.f64 e, e, e;", "max.xorsign.f32 f, f, f;",
    "fma.f32 f, f, f, f;", "fma.rn.sat.relu.f16 h0, h1, h1, h1;", "ex2.approx.bf16 h0, h1;",
    "ex2.approx.ftz.f16 h0, h1;", "tanh.approx.ftz.f32 f, f;", "rcp.f32 f, f;", "div.f32 f, f, f;",
    "rcp.approx.ftz.f64 e, e;", "sqrt.approx.f64 e, e;", "setp.lt.f16x2 p, r, r;",
    "setp.lt.f16 p|q, h0, h1;", "setp.lt.b32 p, r, r;", "setp.lo.s32 p, r, r;",
    "set.lt.f32.f16 f, h0, h1;", "set.lt.u16.f32 h0, f, f;", "selp.f16 h0, h1, h1, p;",
    "sub.u16x2 r, r, r;", "copysign.f16 h0, h1, h1;", "sin.approx.f16 h0, h1;",
])
def test_what_the_isa_lacks_is_refused(bench, line):
    body = (".reg .pred p, q; .reg .b16 h0, h1; .reg .b32 r; .reg .f32 f; .reg .f64 e;\n"
            "mov.b16 h1, 0; mov.b32 r, 0; mov.f32 f, 0f00000000; mov.f64 e, 0d0000000000000000;\n"
            f"setp.eq.u32 p, r, 0;\n{line}\nret;")
    with pytest.raises(EmulatorError) as found:
        bench.kernel(body, {}, target="sm_120a")
    assert found.value.kind == "subset"
    assert found.value.text == line[:-1]


@pytest.mark.parametrize(("line", "least"), [
    ("min.NaN.f32 f, f, f;", 80), ("max.xorsign.abs.f32 f, f, f;", 86),
    ("fma.rn.relu.f16 h, h, h, h;", 80), ("setp.lt.bf16x2 p|q, r, r;", 90),
    ("tanh.approx.bf16 h, h;", 90), ("min.relu.s32 r, r, r;", 90), ("add.u16x2 r, r, r;", 90),
])
def test_what_a_target_lacks_is_refused(bench, line, least):
    body = (".reg .pred p, q; .reg .b16 h; .reg .b32 r; .reg .f32 f;\nmov.b16 h, 0; mov.b32 r, 0;\n"
            f"mov.f32 f, 0f00000000;\n{line}\nret;")
    bench.kernel(body, {}, target="sm_90a")
    with pytest.raises(EmulatorError, match=f"needs sm_{least}"):
        bench.kernel(body, {}, target="sm_75" if least <= 80 else "sm_80")
