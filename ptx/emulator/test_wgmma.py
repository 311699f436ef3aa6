"""Protects what wgmma computes: shapes, types, layouts in shared memory, signs, and its refusals.

It is long because each layout and each family of types has its own way to go wrong.
"""

import numpy as np
import pytest

from ptx.assemble import assemble_all, find_ptxas
from ptx.emulator import EmulatorError
from ptx.emulator.test_mma import VALUES
from ptx.emulator.wgmma_cases import (
    COMMIT,
    FENCE,
    SWIZZLES,
    WAIT,
    Placed,
    a_words,
    descriptor,
    from_threads,
    place_columns,
    place_rows,
    product,
    to_threads,
)

RNG = np.random.default_rng(7)
BF16, F16 = "f32.bf16.bf16", "f32.f16.f16"
PLAIN = "1, 1, 0, 0"


def codes_of(values, kind):
    """Codes of values that the type holds exactly."""
    if kind == "bf16":
        return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind == "f16":
        return np.asarray(values, np.float16).view(np.uint16)
    if kind == "tf32":
        # The low bits do not count, whatever they hold.
        words = np.asarray(values, np.float32).view(np.uint32)
        return words | RNG.integers(0, 1 << 13, words.shape, np.uint32)
    table = VALUES[kind]
    found = np.abs(np.nan_to_num(table, nan=1e9)[None] - np.asarray(values).reshape(-1, 1))
    assert (found.min(axis=1) == 0).all()
    return found.argmin(axis=1).astype(np.uint8).reshape(np.shape(values))


def depth_of(kind):
    return {"bf16": 16, "f16": 16, "tf32": 8}.get(kind, 32)


def wide(matrix, kind, swizzle):
    """The matrix, with noise to its right until rows fill a span."""
    n = max(swizzle, 32) * 8 // {"bf16": 16, "f16": 16, "tf32": 32}.get(kind, 8)
    low = 0 if kind == "u8" else -8
    noise = RNG.integers(low, 9, (len(matrix), n - matrix.shape[1]))
    return np.concatenate([matrix, noise], axis=1)


def whole(shape, kind):
    return RNG.integers(0 if kind == "u8" else -8, 9, shape)


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_width(bench, n):
    a, b, d = whole((64, 16), "bf16"), whole((n, 16), "bf16"), whole((64, n), "bf16")
    got = product(bench, f"m64n{n}k16.{BF16}", place_rows(codes_of(a, "bf16"), 0),
                  place_rows(codes_of(b, "bf16"), 0),
                  to_threads(d.astype(np.float32)).view(np.uint32), PLAIN, seed=n % 3)
    assert np.array_equal(from_threads(got.view(np.float32)), a @ b.T + d)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(("a_type", "b_type"), [
    ("bf16", "bf16"), ("f16", "f16"), ("tf32", "tf32"), ("e4m3", "e4m3"), ("e4m3", "e5m2"),
    ("e5m2", "e4m3"), ("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8"),
])
def test_every_type(bench, a_type, b_type, in_registers, swizzle):
    depth, n = depth_of(a_type), 48
    a, b = whole((64, depth), a_type), whole((n, depth), b_type)
    integer = a_type in ("s8", "u8")
    d = whole((64, n), "s8").astype(np.int32 if integer else np.float32)
    right = place_rows(codes_of(wide(b, b_type, swizzle), b_type), swizzle)
    left = place_rows(codes_of(wide(a, a_type, swizzle), a_type), swizzle)
    if in_registers:
        left = a_words(codes_of(a, a_type), 256 // depth)
    rest = "" if integer else "1, 1"
    if depth == 16:
        rest = "1, 1, 0" if in_registers else PLAIN
    form = f"m64n{n}k{depth}.{'s32' if integer else 'f32'}.{a_type}.{b_type}"
    got = product(bench, form, left, right, to_threads(d).view(np.uint32), rest, seed=2)
    assert np.array_equal(from_threads(got.view(d.dtype)), a @ b.T + d)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 1), (1, 0), (1, 1)])
def test_columns_along_m_and_n(bench, kind, trans_a, trans_b, swizzle):
    n = 192
    a, b = whole((64, 16), kind), whole((n, 16), kind)
    left, right = (
        place_columns(codes_of(m, kind), swizzle) if trans
        else place_rows(codes_of(wide(m, kind, swizzle), kind), swizzle)
        for m, trans in ((a, trans_a), (b, trans_b))
    )
    got = product(bench, f"m64n{n}k16.f32.{kind}.{kind}", left, right, None,
                  f"1, 1, {trans_a}, {trans_b}")
    assert np.array_equal(from_threads(got.view(np.float32)), a @ b.T)
    if trans_b:
        got = product(bench, f"m64n{n}k16.f32.{kind}.{kind}", a_words(codes_of(a, kind), 16), right,
                      None, "1, 1, 1")
        assert np.array_equal(from_threads(got.view(np.float32)), a @ b.T)


@pytest.mark.parametrize("kind", ["bf16", "tf32", "e4m3"])
@pytest.mark.parametrize(("sign_a", "sign_b"), [(1, -1), (-1, 1), (-1, -1)])
def test_signs(bench, kind, sign_a, sign_b):
    depth = depth_of(kind)
    a, b, d = whole((64, depth), kind), whole((16, depth), kind), whole((64, 16), kind)
    rest = f"{sign_a}, {sign_b}" + (", 0, 0" if depth == 16 else "")
    got = product(bench, f"m64n16k{depth}.f32.{kind}.{kind}", place_rows(codes_of(a, kind), 0),
                  place_rows(codes_of(b, kind), 0),
                  to_threads(d.astype(np.float32)).view(np.uint32), rest)
    assert np.array_equal(from_threads(got.view(np.float32)), sign_a * sign_b * a @ b.T + d)


@pytest.mark.parametrize(("swizzle", "step"), [(128, 32), (64, 32), (0, 256)])
def test_steps_along_k(bench, swizzle, step):
    """64 of K in four products into one D, without a fence between them."""
    a, b = whole((64, 64), "bf16"), whole((40, 64), "bf16")
    n_steps = 4 if swizzle != 64 else 2
    kept = 16 * n_steps
    left, right = (place_rows(codes_of(m[:, :kept], "bf16"), swizzle) for m in (a, b))
    for seed in range(4):
        got = product(bench, f"m64n40k16.{BF16}", left, right,
                      np.zeros((128, 20), np.uint32), PLAIN,
                      [(step * k, step * k) for k in range(n_steps)], seed=seed)
        want = a[:, :kept] @ b[:, :kept].T
        assert np.array_equal(from_threads(got.view(np.float32)), want)


def test_a_pattern_that_begins_off_its_alignment(bench):
    """The base offset says where: the third line of 128 bytes is the pattern's first."""
    a, b = whole((64, 64), "bf16"), whole((8, 64), "bf16")
    left, right = (place_rows(codes_of(m, "bf16"), 128) for m in (a, b))
    moved = Placed(np.append(np.zeros(256, np.uint8), left.image), left.bits | 2 << 49)
    got = product(bench, f"m64n8k16.{BF16}", moved, right, None, PLAIN, [(256 + 32, 32)])
    assert np.array_equal(from_threads(got.view(np.float32)), a[:, 16:32] @ b[:, 16:32].T)


def test_the_manual_s_offsets():
    """tf32 in 8 x 2 groups: 256 is encoded as 16, 128 as 8."""
    assert descriptor(256, 128, 0) == 16 << 16 | 8 << 32
    assert descriptor(0, 256, 32) == 16 << 32 | 3 << 62


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
def test_integers_wrap_or_stay_at_the_end(bench, satfinite):
    a, b = (RNG.integers(-128, 128, (n, 32)) for n in (64, 16))
    limits = np.iinfo(np.int32)
    d = RNG.choice([limits.min, limits.max], (64, 16)).astype(np.int32)
    left, right = (place_rows(m.astype(np.int8), 0) for m in (a, b))
    got = product(bench, f"m64n16k32{satfinite}.s32.s8.s8", left, right,
                  to_threads(d).view(np.uint32), "")
    want = a @ b.T + d.astype(np.int64)
    want = np.clip(want, limits.min, limits.max) if satfinite else want.astype(np.int32)
    assert np.array_equal(from_threads(got.view(np.int32)), want)


@pytest.mark.parametrize(("kind", "rest"), [("f16", PLAIN), ("e4m3", "1, 1"), ("e5m2", "1, 1")])
def test_sums_in_halves(bench, kind, rest):
    depth = depth_of(kind)
    a, b, d = whole((64, depth), kind), whole((24, depth), kind), whole((64, 24), kind)
    start = to_threads(d.astype(np.float16)).view(np.uint32)
    got = product(bench, f"m64n24k{depth}.f16.{kind}.{kind}", place_rows(codes_of(a, kind), 0),
                  place_rows(codes_of(b, kind), 0), start, rest)
    want = (a @ b.T + d).astype(np.float16)
    assert np.array_equal(from_threads(got.view(np.float16)), want)


@pytest.mark.parametrize("kind", ["bf16", "f16", "tf32"])
def test_random_operands_are_rounded_once(bench, kind):
    depth = depth_of(kind)
    mask = {"bf16": 0xFFFF0000, "f16": 0xFFFFE000, "tf32": 0xFFFFE000}[kind]
    a, b, d = (RNG.standard_normal(shape).astype(np.float32)
               for shape in ((64, depth), (128, depth), (64, 128)))
    a, b = ((m.view(np.uint32) & np.uint32(mask)).view(np.float32) for m in (a, b))
    a, b = (np.where(np.abs(m) < 2.0**-10, np.float32(0), m) for m in (a, b))
    got = product(bench, f"m64n128k{depth}.f32.{kind}.{kind}", place_rows(codes_of(a, kind), 0),
                  place_rows(codes_of(b, kind), 0), to_threads(d).view(np.uint32),
                  PLAIN if depth == 16 else "1, 1")
    a, b, d = (m.astype(np.float64) for m in (a, b, d))
    off = np.abs(from_threads(got.view(np.float32)) - (a @ b.T + d))
    assert (off <= 2.0**-24 * (1 + 1e-6) * np.abs(a @ b.T + d)).all()


def test_codes_without_a_number(bench):
    """Infinity, NaN and their sums come out as in mma; the other rows are as they were."""
    a = np.zeros((64, 16))
    a[:, 0] = np.arange(64)
    a[3, 1], a[40, 2], a[41, 2:4] = np.inf, np.nan, (np.inf, -np.inf)
    b = np.ones((8, 16))
    got = product(bench, f"m64n8k16.{F16}", place_rows(codes_of(a, "f16"), 0),
                  place_rows(codes_of(b, "f16"), 0), None, PLAIN)
    with np.errstate(invalid="ignore"):
        want = a.sum(axis=1).repeat(8).reshape(64, 8)
    assert np.array_equal(from_threads(got.view(np.float32)), want, equal_nan=True)
    assert {int(x) for x in got[np.isnan(got.view(np.float32))]} == {0x7FFFFFFF}


WRONG = [
    (f"m64n12k16.{BF16}", "has no n12"), (f"m64n264k16.{BF16}", "has no n264"),
    ("m64n40k32.s32.s8.s8", "has no n40"), ("m64n248k32.s32.u8.s8", "has no n248"),
    (f"m64n16k8.{BF16}", "with k8"),
    ("m64n16k16.f16.bf16.bf16", "does not accumulate"), ("m64n16k16.f32.bf16.f16", "outside"),
    ("m64n16k16.satfinite.f32.f16.f16", "for integers"), ("m64n16k32.s32.s8.e4m3", "outside"),
]


@pytest.mark.parametrize(("form", "words"), WRONG)
def test_forms_that_there_are_not(bench, form, words):
    m = place_rows(np.zeros((64, 16), np.uint16), 0)
    with pytest.raises(EmulatorError, match=words):
        product(bench, form, m, m, None, PLAIN)


@pytest.mark.parametrize(("form", "rest", "words"), [
    ("m64n16k32.s32.s8.s8", "1, 1", "operands"), ("m64n16k32.f32.e4m3.e4m3", PLAIN, "operands"),
    (f"m64n16k16.{BF16}", "1, 1", "operands"), (f"m64n16k16.{BF16}", "2, 1, 0, 0", "signs"),
    (f"m64n16k16.{BF16}", "1, 1, 0, 2", "signs"),
])
def test_constants_that_there_are_not(bench, form, rest, words):
    m = place_rows(np.zeros((64, 16), np.uint16), 0)
    with pytest.raises(EmulatorError, match=words):
        product(bench, form, m, m, None, rest)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("text", [FENCE, COMMIT, WAIT])
def test_other_targets_lack_it(bench, target, text):
    with pytest.raises(EmulatorError, match=r"limits: .* needs sm_90a"):
        bench.kernel(text + "ret;", {"x": 16}, block=128, target=target)


class Texts:
    """A bench that keeps the texts and runs nothing."""

    def __init__(self, bench):
        self._bench, self.found = bench, []

    def kernel(self, body, buffers, target="sm_90a", **_):
        self.found.append(self._bench.kernel_text(body, buffers, target))
        return {name: np.zeros(b, np.uint8) if isinstance(b, int) else b
                for name, b in buffers.items()}


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_ptxas_takes_these_texts_and_refuses_those(bench):
    texts = Texts(bench)
    m = place_rows(np.zeros((64, 16), np.uint16), 0)
    registers = np.zeros((128, 4), np.uint32)
    for form, rest in (
        (f"m64n8k16.{BF16}", PLAIN), (f"m64n256k16.{F16}", "-1, 1, 1, 0"),
        ("m64n64k16.f16.f16.f16", PLAIN), ("m64n24k8.f32.tf32.tf32", "1, -1"),
        ("m64n48k32.f32.e4m3.e5m2", "1, 1"), ("m64n16k32.f16.e5m2.e5m2", "1, 1"),
        ("m64n240k32.s32.s8.u8", ""), ("m64n24k32.satfinite.s32.u8.u8", ""),
    ):
        product(texts, form, m, m, None, rest)
        if form.split(".")[-1] in ("bf16", "f16"):
            rest = rest[: rest.rindex(",")]
        product(texts, form, registers, m, None, rest)
    n_good = len(texts.found)
    for form, _ in WRONG:
        product(texts, form, m, m, None, PLAIN if "k32" not in form else "")
    reports = assemble_all([(text, "sm_90a") for text in texts.found])
    assert [report.error for report in reports[:n_good]] == [""] * n_good
    assert all(report.error for report in reports[n_good:])
