"""Protects integer and bit instructions against Python's unbounded integers."""

import numpy as np
import pytest

RNG = np.random.default_rng(5)


def column(n_bits, n=600):
    edges = [0, 1, 2, 3, (1 << n_bits) - 1, 1 << (n_bits - 1), (1 << (n_bits - 1)) - 1, 31, 32, 33]
    random = RNG.integers(0, 1 << 63, n, np.uint64) * np.uint64(2) + np.uint64(1)
    values = [*edges, *(int(x) >> (64 - n_bits) for x in random)]
    return np.array(values, np.uint64).astype(f"uint{n_bits}")


def signed(x, n_bits):
    return x - (1 << n_bits) if x >> (n_bits - 1) else x


def as_type(value, type_name):
    n_bits = int(type_name[1:])
    return signed(int(value), n_bits) if type_name[0] == "s" else int(value)


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY = {
    "add": lambda a, b, n: a + b, "sub": lambda a, b, n: a - b, "mul.lo": lambda a, b, n: a * b,
    "mul.hi": lambda a, b, n: (a * b) >> n, "min": lambda a, b, n: min(a, b),
    "max": lambda a, b, n: max(a, b),
    "div": lambda a, b, n: truncated(a, b), "rem": lambda a, b, n: a - b * truncated(a, b),
}


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("word", BINARY)
def test_binary(bench, word, type_name):
    n_bits = int(type_name[1:])
    a, b = column(n_bits), RNG.permutation(column(n_bits))
    if word in ("div", "rem"):
        b = np.where(b == 0, 7, b).astype(b.dtype)
    got = bench.evaluate(f"{word}.{type_name} d, a, b;", type_name, (type_name, a), (type_name, b))
    for x, y, z in zip(a, b, got, strict=True):
        want = BINARY[word](as_type(x, type_name), as_type(y, type_name), n_bits)
        assert int(z) == want % (1 << n_bits), (int(x), int(y))


@pytest.mark.parametrize("type_name", ["u32", "s32"])
def test_wide_and_mad(bench, type_name):
    a, b = column(32), RNG.permutation(column(32))
    c = RNG.permutation(column(64))
    got = bench.evaluate(f"mad.wide.{type_name} d, a, b, c;", "u64", (type_name, a),
                         (type_name, b), ("u64", c))
    for x, y, z, d in zip(a, b, c, got, strict=True):
        want = as_type(x, type_name) * as_type(y, type_name) + int(z)
        assert int(d) == want % (1 << 64)
    got = bench.evaluate(f"mad.hi.{type_name} d, a, b, c;", "u32", (type_name, a), (type_name, b),
                         ("u32", a))
    for x, y, d in zip(a, b, got, strict=True):
        want = (as_type(x, type_name) * as_type(y, type_name) >> 32) + int(x)
        assert int(d) == want % (1 << 32)


def test_every_pair_of_bytes_through_wide_registers(bench):
    a, b = (x.ravel().astype(np.uint8) for x in np.meshgrid(np.arange(256), np.arange(256)))
    line = ".reg .b32 x, y; cvt.s32.s8 x, a; cvt.s32.s8 y, b; mul.lo.s32 x, x, y; cvt.u16.u32 d, x;"
    got = bench.evaluate(line, "u16", ("u8", a), ("u8", b))
    want = a.view(np.int8).astype(np.int32) * b.view(np.int8)
    assert np.array_equal(got, want.astype(np.uint16))


def test_carries_make_128_bits(bench):
    a, b = column(64), RNG.permutation(column(64))
    line = "add.cc.u64 d, a, b; addc.u64 d, 0, 0;"
    got = bench.evaluate(line, "u64", ("u64", a), ("u64", b))
    assert got.tolist() == [(int(x) + int(y)) >> 64 for x, y in zip(a, b, strict=True)]
    line = "sub.cc.u32 d, a, b; subc.u32 d, 0, 0;"
    a, b = column(32), RNG.permutation(column(32))
    got = bench.evaluate(line, "u32", ("u32", a), ("u32", b))
    assert got.tolist() == [-(int(x) < int(y)) % 2**32 for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("type_name", ["b16", "b32", "b64", "s16", "s32", "s64", "u32", "u64"])
def test_shifts_clamp(bench, type_name):
    n_bits = int(type_name[1:])
    a, n = column(n_bits), RNG.integers(0, 80, 610).astype(np.uint32)
    n[:3] = [2**31, n_bits, n_bits - 1]
    right = bench.evaluate(f"shr.{type_name} d, a, b;", type_name, (type_name, a), ("u32", n))
    for x, y, z in zip(a, n, right, strict=True):
        assert int(z) == (as_type(x, type_name) >> min(int(y), n_bits)) % (1 << n_bits)
    if type_name[0] == "b":
        left = bench.evaluate(f"shl.{type_name} d, a, b;", type_name, (type_name, a), ("u32", n))
        for x, y, z in zip(a, n, left, strict=True):
            assert int(z) == (int(x) << min(int(y), n_bits)) % (1 << n_bits)


@pytest.mark.parametrize("side", ["l", "r"])
@pytest.mark.parametrize("how", ["wrap", "clamp"])
def test_funnel_shift(bench, side, how):
    a, b = column(32), RNG.permutation(column(32))
    n = RNG.integers(0, 70, len(a)).astype(np.uint32)
    got = bench.evaluate(f"shf.{side}.{how}.b32 d, a, b, c;", "b32", ("b32", a), ("b32", b),
                         ("u32", n))
    for x, y, s, d in zip(a, b, n, got, strict=True):
        count = int(s) % 32 if how == "wrap" else min(int(s), 32)
        wide = (int(y) << 32) | int(x)
        want = wide >> count if side == "r" else (wide << count) >> 32
        assert int(d) == want % 2**32


def test_logic(bench):
    a, b, c = column(32), RNG.permutation(column(32)), RNG.permutation(column(32))
    for table in (0x00, 0x80, 0xFE, 0x96, 0xEA, 0x6A, 0xCA, 0xC0, 0xFC, 0x3C, 0x1D, 0xB2, 0xFF):
        got = bench.evaluate(f"lop3.b32 d, a, b, c, {table};", "b32", ("b32", a), ("b32", b),
                             ("b32", c))
        for x, y, z, d in zip(a[:60], b[:60], c[:60], got[:60], strict=True):
            bits = [(table >> (4 * (int(x) >> i & 1) + 2 * (int(y) >> i & 1) + (int(z) >> i & 1)))
                    & 1 for i in range(32)]
            assert int(d) == sum(bit << i for i, bit in enumerate(bits)), hex(table)


def test_prmt(bench):
    a, b, c = column(32), RNG.permutation(column(32)), RNG.permutation(column(32))
    got = bench.evaluate("prmt.b32 d, a, b, c;", "b32", ("b32", a), ("b32", b), ("b32", c))
    for x, y, z, d in zip(a, b, c, got, strict=True):
        source = int(x).to_bytes(4, "little") + int(y).to_bytes(4, "little")
        want = []
        for byte in range(4):
            code = int(z) >> (4 * byte) & 15
            value = source[code & 7]
            want.append((255 if value & 128 else 0) if code & 8 else value)
        assert int(d) == int.from_bytes(bytes(want), "little")
    got = bench.evaluate("prmt.b32.rc16 d, a, b, 1;", "b32", ("b32", a), ("b32", b))
    assert got.tolist() == [(int(x) >> 16) * 0x10001 for x in a]


@pytest.mark.parametrize("type_name", ["u32", "s32", "u64", "s64"])
def test_bit_fields(bench, type_name):
    n_bits = int(type_name[1:])
    a = column(n_bits)
    start, count = (RNG.integers(0, 70, len(a)).astype(np.uint32) for _ in range(2))
    got = bench.evaluate(f"bfe.{type_name} d, a, b, c;", type_name, (type_name, a),
                         ("u32", start), ("u32", count))
    for x, s, n, d in zip(a, start, count, got, strict=True):
        # Past its top a signed word continues with its sign.
        word = as_type(x, type_name)
        value = (word >> int(s)) & ((1 << int(n)) - 1)
        if type_name[0] == "s" and n and value >> (int(n) - 1):
            value -= 1 << int(n)
        assert int(d) == value % (1 << n_bits), (hex(int(x)), int(s), int(n))
    b = RNG.permutation(a)
    got = bench.evaluate(f"bfi.b{n_bits} d, a, b, c, e;", type_name, (type_name, a),
                         (type_name, b), ("u32", start), ("u32", count))
    for x, y, s, n, d in zip(a, b, start, count, got, strict=True):
        mask = (((1 << int(n)) - 1) << int(s)) % (1 << n_bits)
        assert int(d) == (int(y) & ~mask) | ((int(x) << int(s)) & mask)


@pytest.mark.parametrize("n_bits", [32, 64])
def test_counting(bench, n_bits):
    a = column(n_bits)
    values = [int(x) for x in a]
    for word, type_name, want in (
        ("popc", "b", [bin(x).count("1") for x in values]),
        ("clz", "b", [n_bits - x.bit_length() for x in values]),
        ("bfind", "u", [(x.bit_length() - 1) % 2**32 for x in values]),
    ):
        got = bench.evaluate(f"{word}.{type_name}{n_bits} d, a;", "u32", (f"u{n_bits}", a))
        assert got.tolist() == want, word
    got = bench.evaluate(f"brev.b{n_bits} d, a;", f"u{n_bits}", (f"u{n_bits}", a))
    assert got.tolist() == [int(f"{x:0{n_bits}b}"[::-1], 2) for x in values]


@pytest.mark.parametrize(("a_type", "b_type"), [("s32", "s32"), ("u32", "s32"), ("u32", "u32")])
def test_dot_of_bytes(bench, a_type, b_type):
    a, b, c = column(32), RNG.permutation(column(32)), RNG.permutation(column(32))
    got = bench.evaluate(f"dp4a.{a_type}.{b_type} d, a, b, c;", "u32", ("u32", a), ("u32", b),
                         ("u32", c))
    for x, y, z, d in zip(a, b, c, got, strict=True):
        total = int(z)
        for byte in range(4):
            p, q = int(x) >> 8 * byte & 255, int(y) >> 8 * byte & 255
            total += (signed(p, 8) if a_type == "s32" else p) * (
                signed(q, 8) if b_type == "s32" else q)
        assert int(d) == total % 2**32


def test_packing_moves(bench):
    a = column(64)
    line = ".reg .b32 x, y; mov.b64 {x, y}, a; mov.b64 d, {y, x};"
    got = bench.evaluate(line, "u64", ("u64", a))
    assert got.tolist() == [(int(x) >> 32) | (int(x) << 32) % 2**64 for x in a]
    line = ".reg .b32 x, y; mov.b64 {x, y}, a; mov.b32 {h0, h1}, y; mov.b32 d, {h1, h0};"
    got = bench.evaluate(line, "u32", ("u64", a))
    assert got.tolist() == [((int(x) >> 48) | ((int(x) >> 32 & 0xFFFF) << 16)) for x in a]


def test_selections(bench):
    a, b = column(32), RNG.permutation(column(32))
    for word, f in (("lo", lambda x, y: x < y), ("hs", lambda x, y: x >= y)):
        got = bench.evaluate(f"setp.{word}.u32 p, a, b; selp.b32 d, a, b, p;", "u32", ("u32", a),
                             ("u32", b))
        assert got.tolist() == [int(x) if f(x, y) else int(y) for x, y in zip(a, b, strict=True)]
    line = "setp.lt.and.s32 p|q, a, 0, !gone; selp.u32 d, 1, 0, p; @q add.u32 d, d, 2;"
    got = bench.evaluate(line, "u32", ("u32", a))
    assert got.tolist() == [1 if int(x) >> 31 else 2 for x in a]
    got = bench.evaluate("slct.u32.s32 d, a, b, c;", "u32", ("u32", a), ("u32", b), ("s32", b))
    assert got.tolist() == [int(y) if int(y) >> 31 else int(x) for x, y in zip(a, b, strict=True)]
