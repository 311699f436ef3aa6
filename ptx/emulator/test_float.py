"""Protects floating-point instructions against exact rational arithmetic, rounded here.

Long because every format, rounding mode and special value is a case of its own.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

RNG = np.random.default_rng(11)
EDGES32 = np.array(
    [0x0, 0x80000000, 0x1, 0x80000001, 0x7FFFFF, 0x800000, 0x3F800000, 0xBF800000, 0x3F800001,
     0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x33800000, 0x4B800000,
     0x00FFFFFF, 0x34000000, 0x3F7FFFFF, 0x5F000000], np.uint32)
FORMATS = {"f32": (24, -126, 127), "f16": (11, -14, 15), "bf16": (8, -126, 127),
           "f64": (53, -1022, 1023)}


def round_to(exact, name, mode="rn"):
    """A Fraction on a float grid; the value as Fraction, or an infinity as float."""
    digits, low, high = FORMATS[name]
    if exact == 0:
        return Fraction(0)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, low) - digits + 1)
    scaled = exact / step
    below = math.floor(scaled)
    rest = scaled - below
    up = {"rz": rest > 0 and exact < 0, "rm": False, "rp": rest > 0,
          "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1)}[mode]
    value = (below + up) * step
    limit = (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** high
    if abs(value) > limit:
        keeps = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        return (limit if keeps else math.inf) * (1 if value > 0 else -1)
    return value


def pairs(n, n_inputs=2):
    """Edges against edges, random bits, and numbers of neighbouring size that cancel."""
    grids = np.meshgrid(*[EDGES32] * 2)
    columns = [g.ravel() for g in grids][:2]
    columns += [RNG.permutation(columns[0])] * (n_inputs - 2)
    random = [RNG.integers(0, 2**32, n, np.uint32) for _ in range(n_inputs)]
    near = [RNG.standard_normal(n).astype(np.float32).view(np.uint32) for _ in range(n_inputs)]
    if n_inputs == 3:
        a, b = near[0].view(np.float32), near[1].view(np.float32)
        near[2] = (-(a * b)).view(np.uint32) + RNG.integers(0, 3, n, np.uint32)
    return [np.concatenate(parts) for parts in zip(columns, random, near, strict=True)]


def check(got, columns, exact, name, mode="rn"):
    """Compare with `exact` of Fractions where all inputs are finite and it gives a value."""
    views = {"f32": np.float32, "f16": np.float16, "f64": np.float64}
    if name == "bf16":
        values = [(c.astype(np.uint32) << 16).view(np.float32) for c in columns]
        result = (got.astype(np.uint32) << 16).view(np.float32)
    else:
        values = [c.view(views[name]) for c in columns]
        result = got.view(views[name])
    n_checked = 0
    for row in range(len(got)):
        inputs = [float(v[row]) for v in values]
        if not all(map(math.isfinite, inputs)):
            continue
        want = exact(*map(Fraction, inputs))
        if want is None:
            continue
        want = round_to(want, name, mode)
        assert float(result[row]) == float(want), (inputs, mode, float(result[row]), float(want))
        n_checked += 1
    assert n_checked > len(got) // 3


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("word", "exact"), [
    ("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b),
    ("div", lambda a, b: a / b if b else None),
])
def test_binary_f32(bench, word, exact, mode):
    a, b = pairs(700)
    got = bench.evaluate(f"{word}.{mode}.f32 d, a, b;", "f32", ("f32", a), ("f32", b))
    check(got, [a, b], exact, "f32", mode)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma_f32_rounds_once(bench, mode):
    a, b, c = pairs(900, 3)
    got = bench.evaluate(
        f"fma.{mode}.f32 d, a, b, c;", "f32", ("f32", a), ("f32", b), ("f32", c)
    )
    check(got, [a, b, c], lambda x, y, z: x * y + z, "f32", mode)


def test_fma_f32_where_rounding_twice_differs(bench):
    # 1 + 2^-24 + 2^-80 lies just past the middle: by way of float64 it would become 1.
    a = np.array([2.0**-40, 1.0], np.float32)
    b = np.array([2.0**-40, 2.0**-24], np.float32)
    c = np.array([1.0 + 2.0**-23, 1.0], np.float32)
    half = np.array([2.0**-24 + 2.0**-47], np.float32)
    got = bench.evaluate("fma.rn.f32 d, a, b, c;", "f32", ("f32", a), ("f32", b), ("f32", c))
    check(got, [a.view("u4"), b.view("u4"), c.view("u4")], lambda x, y, z: x * y + z, "f32")
    exact = Fraction(float(half[0])) * Fraction(float(np.float32(1 + 2**-23))) + 1
    got = bench.evaluate("fma.rn.f32 d, a, b, c;", "f32", ("f32", half),
                         ("f32", np.array([1 + 2**-23], np.float32)),
                         ("f32", np.array([1.0], np.float32)))
    assert Fraction(float(got.view(np.float32)[0])) == round_to(exact, "f32")


def test_fma_f64_rounds_once(bench):
    n = 400
    a, b, c = (RNG.standard_normal(n) for _ in range(3))
    c[: n // 2] = -(a * b)[: n // 2] * (1 + 2.0**-52 * RNG.integers(-2, 3, n // 2))
    a[-20:] *= 2.0**900
    c[-10:] *= 2.0**-1000
    got = bench.evaluate("fma.rn.f64 d, a, b, c;", "f64", ("f64", a), ("f64", b), ("f64", c))
    check(got, [x.view("u8") for x in (a, b, c)], lambda x, y, z: x * y + z, "f64")


@pytest.mark.parametrize(("word", "exact"), [
    ("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b),
    ("div", lambda a, b: a / b if b else None),
    ("max", max), ("min", min),
])
def test_binary_f64(bench, word, exact):
    a, b = (RNG.integers(0, 2**64, 600, np.uint64) for _ in range(2))
    # Numbers of like size, and some whose product or quotient is below the normal ones.
    a[200:] = RNG.standard_normal(400).view(np.uint64)
    b[200:] = RNG.standard_normal(400).view(np.uint64)
    a[400:] = (a[400:].view(np.float64) * 2.0**-600).view(np.uint64)
    b[500:] = (b[500:].view(np.float64) * 2.0**-460).view(np.uint64)
    mode = "" if word in ("max", "min") else ".rn"
    got = bench.evaluate(f"{word}{mode}.f64 d, a, b;", "f64", ("f64", a), ("f64", b))
    check(got, [a, b], exact, "f64")


def test_f64_zeros_and_nan(bench):
    a = np.array([-0.0, -0.0, np.nan, np.nan, -np.inf])
    b = np.array([0.0, -0.0, -32.0, 1.0, -32.0])
    total = bench.evaluate("add.rn.f64 d, a, b;", "f64", ("f64", a), ("f64", b))
    assert total.tolist()[:2] == [0, 1 << 63]
    larger = bench.evaluate("max.f64 d, a, b;", "f64", ("f64", a), ("f64", b)).view(np.float64)
    assert larger.tolist()[2:] == [-32.0, 1.0, -32.0]
    halves = np.array([0.5, 1.5, -2.5, -0.5, 2.0**52 + 1, -45.5])
    got = bench.evaluate("cvt.rni.f64.f64 d, a;", "f64", ("f64", halves)).view(np.float64)
    assert got.tolist() == [0.0, 2.0, -2.0, -0.0, 2.0**52 + 1, -46.0]


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize(("line", "n", "exact"), [
    ("add.rn.{} d, a, b;", 2, lambda a, b: a + b), ("mul.rn.{} d, a, b;", 2, lambda a, b: a * b),
    ("sub.rn.{} d, a, b;", 2, lambda a, b: a - b),
    ("fma.rn.{} d, a, b, c;", 3, lambda a, b, c: a * b + c),
])
def test_halves(bench, name, line, n, exact):
    columns = [RNG.integers(0, 2**16, 3000, np.uint16) for _ in range(n)]
    got = bench.evaluate(line.format(name), name, *[(name, c) for c in columns])
    check(got, columns, exact, name)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_packed_halves_are_two_halves(bench, name):
    a, b, c = (RNG.integers(0, 2**16, 2000, np.uint16) for _ in range(3))
    single = bench.evaluate(f"fma.rn.{name} d, a, b, c;", name, (name, a), (name, b), (name, c))
    packed = bench.evaluate(f"fma.rn.{name}x2 d, a, b, c;", f"{name}x2",
                            *[(f"{name}x2", x.view(np.uint32)) for x in (a, b, c)])
    assert packed.view(np.uint16).tolist() == single.tolist()


def test_roots_and_reciprocals(bench):
    bits = np.concatenate([EDGES32, RNG.integers(0, 2**32, 1500, np.uint32)])
    for mode in ("rn", "rz", "rm", "rp"):
        got = bench.evaluate(f"rcp.{mode}.f32 d, a;", "f32", ("f32", bits))
        check(got, [bits], lambda x: 1 / x if x else None, "f32", mode)
    positive = bits & 0x7FFFFFFF
    got = bench.evaluate("sqrt.rn.f32 d, a;", "f32", ("f32", positive)).view(np.float32)
    for x, y in zip(positive.view(np.float32), got, strict=True):
        if not math.isfinite(x):
            continue
        # The root lies between the middles to both neighbours.
        low, high = (
            (Fraction(float(y)) + Fraction(float(np.nextafter(y, np.float32(to))))) / 2
            for to in (-np.inf, np.inf)
        )
        assert max(low, 0) ** 2 <= Fraction(float(x)) <= high**2


def test_zeros_nans_and_infinities(bench):
    nan, inf = 0x7FC12345, 0x7F800000
    a = np.array([nan, inf, 0, 0x80000000, inf], np.uint32)
    b = np.array([0, 0xFF800000, 0x80000000, 0x80000000, 0], np.uint32)
    word = [("add", [0x7FFFFFFF, 0x7FFFFFFF, 0, 0x80000000, inf]),
            ("mul", [0x7FFFFFFF, 0xFF800000, 0x80000000, 0, 0x7FFFFFFF]),
            ("min", [0, 0xFF800000, 0x80000000, 0x80000000, 0]),
            ("max", [0, inf, 0, 0x80000000, inf]),
            ("min.NaN", [0x7FFFFFFF, 0xFF800000, 0x80000000, 0x80000000, 0])]
    for name, want in word:
        got = bench.evaluate(f"{name}.f32 d, a, b;", "f32", ("f32", a), ("f32", b))
        assert got.tolist() == want, name


LEAST, UNIT = 0x00800000, 2.0**-23


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("word", "rows", "exact"), [
    ("mul", [(1 - i * UNIT / 2, (1 + j * UNIT) * 2.0**-126) for i in range(4) for j in range(4)],
     lambda a, b: a * b),
    ("div", [((1 + i * UNIT) * 2.0**-126, (1 + j * UNIT) * k) for i in (0, 1, 2, 2**23 - 1)
             for j in range(4) for k in (1, 2)], lambda a, b: a / b),
    ("fma", [(i * 2.0**-76, 2.0**-77, sign * 2.0**-126) for i in range(16) for sign in (1, -1)],
     lambda a, b, c: a * b + c),
])
def test_tiny_is_judged_with_all_its_bits(bench, word, rows, exact, mode):
    """Flushed is what stays below 2^-126 when it is rounded as if exponents had no end."""
    # The second factor keeps its sign.
    rows = rows + [tuple(x if at == 1 else -x for at, x in enumerate(row)) for row in rows]
    columns = [np.array(c, np.float32) for c in zip(*rows, strict=True)]
    names = ", ".join("abc"[: len(columns)])
    line = f"{word}.{mode}{{}}.f32 d, {names};"
    given = [("f32", c) for c in columns]
    got = bench.evaluate(line.format(".ftz"), "f32", *given).view(np.float32)
    kept = bench.evaluate(line.format(""), "f32", *given).view(np.float32)
    scale = Fraction(2) ** 126
    rounding = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}[mode]
    seen = set()
    for row, flushed, plain in zip(rows, got.tolist(), kept.tolist(), strict=True):
        value = exact(*map(Fraction, row)) * scale
        # Below 1 the bits are worth 2^-24 there; round is to even.
        tiny = abs(rounding(value * 2**24)) < 2**24
        seen.add((tiny, abs(plain) < 2.0**-126))
        assert flushed == (0 if tiny else plain), row
    assert mode == "rz" or (True, False) in seen, "nothing that only all its bits show to be tiny"


@pytest.mark.parametrize(("mode", "sign"), [("rn", 0), ("rz", 0), ("rp", 0), ("rm", 1)])
def test_what_cancels_is_minus_zero_when_rounding_goes_down(bench, mode, sign):
    a = np.array([1.5, -1.5, 0.0, -0.0, 0.0, -0.0], np.float32)
    b = np.array([-1.5, 1.5, -0.0, 0.0, 0.0, -0.0], np.float32)
    want = [sign << 31] * 4 + [0, 1 << 31]
    one = ("f32", np.ones(6, np.float32))
    for line, *rest in ((f"add.{mode}.f32 d, a, b;", ("f32", a), ("f32", b)),
                        (f"sub.{mode}.f32 d, a, b;", ("f32", a), ("f32", -b)),
                        (f"fma.{mode}.f32 d, a, b, c;", ("f32", a), one, ("f32", b))):
        assert bench.evaluate(line, "f32", *rest).tolist() == want, line


def test_ftz_sat_relu(bench):
    a = np.array([1e-40, -1e-40, 2.0, -3.0, np.nan, 0.25], np.float32)
    one = np.ones(6, np.float32)
    got = bench.evaluate("mul.rn.ftz.f32 d, a, b;", "f32", ("f32", a), ("f32", one))
    assert got.tolist()[:2] == [0, 0x80000000]
    got = bench.evaluate("mul.rn.sat.f32 d, a, b;", "f32", ("f32", a), ("f32", one))
    assert got.view(np.float32).tolist()[2:] == [1.0, 0.0, 0.0, 0.25]
    half = np.array([2.0, -3.0], np.float16)
    got = bench.evaluate("fma.rn.relu.f16 d, a, b, c;", "f16", ("f16", half),
                         ("f16", np.ones(2, np.float16)), ("f16", np.zeros(2, np.float16)))
    assert got.view(np.float16).tolist() == [2.0, 0.0]


@pytest.mark.parametrize(("word", "wide"), [
    ("ex2", np.exp2), ("lg2", np.log2), ("rsqrt", lambda x: 1 / np.sqrt(x)), ("sin", np.sin),
    ("cos", np.cos), ("tanh", np.tanh),
])
def test_approximate_functions_are_correctly_rounded(bench, word, wide):
    # The 64-bit significand of the judge decides all but one in some billions.
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("numpy's longdouble is no wider than float64 here")
    x = (RNG.standard_normal(4000) * np.exp2(RNG.integers(-20, 6, 4000))).astype(np.float32)
    if word in ("lg2", "rsqrt"):
        x = np.abs(x)
    got = bench.evaluate(f"{word}.approx.f32 d, a;", "f32", ("f32", x)).view(np.float32)
    assert np.array_equal(got, wide(x.astype(np.longdouble)).astype(np.float32))


def test_the_decimal_judge_agrees_where_it_is_asked():
    from ptx.emulator import exact

    for f, slow in ((math.sin, exact.sin_decimal), (math.cos, exact.cos_decimal),
                    (math.tanh, exact.tanh_decimal), (lambda x: 2.0**x, exact.exp2_decimal)):
        for x in (-3.5, -0.1, 0.7, 2.0, 19.25):
            assert float(exact._exactly(x, slow)) == pytest.approx(f(x), rel=1e-7)
    assert float(exact._exactly(1e22, exact.sin_decimal)) == pytest.approx(-0.8522008497671888)


def test_comparisons_with_nan(bench):
    a = np.array([1, 2, np.nan, np.nan, 2], np.float32)
    b = np.array([2, 1, 1, np.nan, 2], np.float32)
    want = {"lt": [1, 0, 0, 0, 0], "le": [1, 0, 0, 0, 1], "ltu": [1, 0, 1, 1, 0],
            "eq": [0, 0, 0, 0, 1], "ne": [1, 1, 0, 0, 0], "neu": [1, 1, 1, 1, 0],
            "num": [1, 1, 0, 0, 1], "nan": [0, 0, 1, 1, 0], "geu": [0, 1, 1, 1, 1]}
    for word, results in want.items():
        line = f"setp.{word}.f32 p, a, b; selp.u32 d, 1, 0, p;"
        got = bench.evaluate(line, "u32", ("f32", a), ("f32", b))
        assert got.tolist() == results, word
