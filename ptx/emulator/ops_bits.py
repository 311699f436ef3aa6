"""Owns logic, shifts and bit fields.

It must not know memory or lanes' order. Contract: the PTX ISA's logic, shift and bit instructions.
It is long because each opcode is a few lines of its own.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.formats import TYPES, Type
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_integer import simple
from ptx.numerics import Array

LOGIC: dict[str, Callable[..., Array]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "cnot": lambda a: (a == 0).astype(a.dtype),
}
U32, S32, U64 = TYPES["u32"], TYPES["s32"], TYPES["u64"]


@opcode(*LOGIC)
def _logic(build: Build) -> Step:
    type_, name = build.take_bits("pred"), build.source.opcode
    n = 1 if name in ("not", "cnot") else 2
    build.done(n + 1)
    get = [build.read(build.operand(at), type_) for at in range(1, n + 1)]
    return Step(simple(build.write(build.operand(0), type_), LOGIC[name], *get))


@opcode("shl", "shr")
def _shift(build: Build) -> Step:
    type_, left = build.take_bits(), build.source.opcode == "shl"
    build.done(3)
    put = build.write(build.operand(0), type_)
    a, amount = build.read(build.operand(1), type_), build.read(build.operand(2), U32)
    last = np.uint32(type_.n_bits - 1)

    def run(sel: Sel) -> None:
        x, n = a(sel), amount(sel)
        clamped = np.minimum(n, last).astype(type_.dtype)
        if left:
            put(sel, np.where(n > last, type_.dtype.type(0), x << clamped))
        elif type_.kind == "s":
            put(sel, x >> clamped)
        else:
            put(sel, np.where(n > last, type_.dtype.type(0), x >> clamped))

    return Step(run)


@opcode("shf")
def _funnel(build: Build) -> Step:
    side, clamps = build.take("l", "r"), build.take("clamp", "wrap") == "clamp"
    type_ = build.take_type()
    build.done(4)
    put = build.write(build.operand(0), U32)
    low, high, amount = (build.read(build.operand(at), U32) for at in (1, 2, 3))
    if type_.n_bits != 32 or side is None:
        raise build.refuse("needs .l or .r and b32")

    def run(sel: Sel) -> None:
        n = amount(sel)
        n = np.minimum(n, np.uint32(32)) if clamps else n & np.uint32(31)
        wide = (high(sel).astype(np.uint64) << np.uint64(32)) | low(sel)
        n64 = n.astype(np.uint64)
        if side == "r":
            put(sel, (wide >> n64).astype(np.uint32))
        else:
            # A shift of the pair by 32 would need a 96-bit number: shift down instead.
            put(sel, (wide >> (np.uint64(32) - n64)).astype(np.uint32))

    return Step(run)


def logic3(a: Array, b: Array, c: Array, table: int) -> Array:
    """Bitwise function of three words by its table: bit 4a + 2b + c of `table`."""
    ones = a.dtype.type(0) - a.dtype.type(1)
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), a.dtype)
    for place in range(8):
        if table >> place & 1:
            term = (a if place & 4 else a ^ ones) & (b if place & 2 else b ^ ones)
            result |= term & (c if place & 1 else c ^ ones)
    return result


def _table_word(table: int) -> Callable[[Array, Array, Array], Array]:
    """The frequent tables in one or two operations, the others by their minterms."""
    ready: dict[int, Callable[[Array, Array, Array], Array]] = {
        0x80: lambda a, b, c: a & b & c,
        0xFE: lambda a, b, c: a | b | c,
        0x96: lambda a, b, c: a ^ b ^ c,
        0xEA: lambda a, b, c: (a & b) | c,
        0x6A: lambda a, b, c: (a & b) ^ c,
        0xC0: lambda a, b, c: a & b,
        0xFC: lambda a, b, c: a | b,
        0x3C: lambda a, b, c: a ^ b,
        0xCA: lambda a, b, c: (a & b) | (~a & c),
    }
    return ready.get(table, lambda a, b, c: logic3(a, b, c, table))


@opcode("lop3")
def _lop3(build: Build) -> Step:
    type_ = build.take_bits()
    build.done(5)
    get = [build.read(build.operand(at), type_) for at in (1, 2, 3)]
    f = _table_word(build.integer(4) & 0xFF)
    put = build.write(build.operand(0), type_)
    return Step(simple(put, lambda a, b, c: f(np.asarray(a), np.asarray(b), np.asarray(c)), *get))


# Byte selectors of the special prmt modes, by the low two bits of the third operand.
MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@opcode("prmt")
def _prmt(build: Build) -> Step:
    mode = build.take(*MODES)
    build.take_type()
    build.done(4)
    put = build.write(build.operand(0), U32)
    a, b, c = (build.read(build.operand(at), U32) for at in (1, 2, 3))
    table = np.array(MODES[mode], np.uint32) if mode else None

    def run(sel: Sel) -> None:
        chosen = c(sel)
        if table is not None:
            chosen = table[chosen & np.uint32(3)]
        wide = (b(sel).astype(np.uint64) << np.uint64(32)) | a(sel)
        result = np.zeros(np.broadcast_shapes(np.shape(wide), np.shape(chosen)), np.uint32)
        for byte in range(4):
            code = (chosen >> np.uint32(4 * byte)) & np.uint32(15)
            shift = (np.uint64(8) * (code & np.uint32(7))).astype(np.uint64)
            value = ((wide >> shift) & np.uint64(0xFF)).astype(np.uint32)
            spread = np.where(value & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
            value = np.where(code & np.uint32(8), spread, value)
            result |= value << np.uint32(8 * byte)
        put(sel, result)

    return Step(run)


def extract(a: Array, start: Array, count: Array, type_: Type) -> Array:
    """The bit field of `count` bits from `start`, extended by zeros or its top bit."""
    unsigned = np.dtype(f"uint{type_.n_bits}")
    word, n_bits = a.view(unsigned), type_.n_bits
    start, count = start & np.uint32(0xFF), count & np.uint32(0xFF)
    kept = np.where(start >= n_bits, 0, word >> np.minimum(start, n_bits - 1).astype(unsigned))
    kept = kept.astype(unsigned)
    whole = count >= n_bits
    mask = np.where(
        whole, ~unsigned.type(0),
        (unsigned.type(1) << np.minimum(count, n_bits - 1).astype(unsigned)) - unsigned.type(1),
    )
    value = kept & mask
    if type_.kind == "s":
        # The sign is the field's top bit, or the word's where the field reaches past the word.
        top = np.minimum(start.astype(np.int64) + count - 1, n_bits - 1)
        sign = (word >> np.maximum(top, 0).astype(unsigned)) & unsigned.type(1)
        sign = np.where(count == 0, 0, sign)
        value = np.where(sign == 1, value | ~mask, value)
        past = (start.astype(np.int64) + count > n_bits) & (count > 0)
        reach = np.clip(n_bits - start.astype(np.int64), 0, n_bits - 1).astype(unsigned)
        high = ~((unsigned.type(1) << reach) - unsigned.type(1))
        value = np.where(past & (sign == 1), value | high, value)
    return np.asarray(value, unsigned).view(type_.dtype)


@opcode("bfe")
def _bfe(build: Build) -> Step:
    type_ = build.take_bits()
    build.done(4)
    put = build.write(build.operand(0), type_)
    a = build.read(build.operand(1), type_)
    start, count = (build.read(build.operand(at), U32) for at in (2, 3))
    return Step(simple(put, lambda x, s, n: extract(np.asarray(x), s, n, type_), a, start, count))


@opcode("bfi")
def _bfi(build: Build) -> Step:
    type_ = build.take_bits()
    build.done(5)
    put = build.write(build.operand(0), type_)
    a, b = (build.read(build.operand(at), type_) for at in (1, 2))
    start, count = (build.read(build.operand(at), U32) for at in (3, 4))
    n_bits, one = type_.n_bits, type_.dtype.type(1)

    def run(sel: Sel) -> None:
        first, n = start(sel) & np.uint32(0xFF), count(sel) & np.uint32(0xFF)
        shift = np.minimum(first, n_bits - 1).astype(type_.dtype)
        width = (one << np.minimum(n, n_bits - 1).astype(type_.dtype)) - one
        mask = np.where(n >= n_bits, ~type_.dtype.type(0), width) << shift
        mask = np.where((first >= n_bits) | (n == 0), type_.dtype.type(0), mask)
        put(sel, (b(sel) & ~mask) | ((a(sel) << shift) & mask))

    return Step(run)


def popcount(x: Array) -> Array:
    """Ones in each word, uint32."""
    wide = np.asarray(x).astype(np.uint64)
    for shift, mask in (
        (1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)
    ):
        wide = (wide & np.uint64(mask)) + ((wide >> np.uint64(shift)) & np.uint64(mask))
    return ((wide * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.uint32)


def leading_zeros(x: Array, n_bits: int) -> Array:
    """Zeros above the top one, `n_bits` for zero, uint32."""
    wide = np.asarray(x).astype(np.uint64)
    for shift in (1, 2, 4, 8, 16, 32):
        wide = wide | (wide >> np.uint64(shift))
    return np.uint32(n_bits) - popcount(wide)


def reverse_bits(x: Array, n_bits: int) -> Array:
    """The word with its bits in the opposite order."""
    dtype = np.dtype(f"uint{n_bits}")
    raw = np.ascontiguousarray(np.atleast_1d(x)).view(np.uint8).reshape(-1, n_bits // 8)
    back = np.packbits(np.unpackbits(raw, axis=1)[:, ::-1], axis=1)
    result: Array = np.ascontiguousarray(back).view(dtype)[:, 0]
    return result


@opcode("popc", "clz", "brev", "bfind")
def _count(build: Build) -> Step:
    type_, name = build.take_bits(), build.source.opcode
    shifts = build.take("shiftamt")
    build.done(2)
    n_bits = type_.n_bits
    put = build.write(build.operand(0), type_ if name == "brev" else U32)
    get = build.read(build.operand(1), type_)

    def find(x: Array) -> Array:
        word = np.asarray(x).view(np.dtype(f"uint{n_bits}"))
        if type_.kind == "s":
            word = np.where(np.asarray(x) < 0, ~word, word)
        zeros = leading_zeros(word, n_bits)
        return np.where(zeros == n_bits, np.uint32(0xFFFFFFFF),
                        zeros if shifts else np.uint32(n_bits - 1) - zeros)

    functions: dict[str, Callable[..., Array]] = {
        "popc": popcount, "clz": lambda x: leading_zeros(x, n_bits),
        "brev": lambda x: reverse_bits(x, n_bits), "bfind": find,
    }
    return Step(simple(put, functions[name], get))


@opcode("bmsk")
def _bmsk(build: Build) -> Step:
    clamps = build.take("clamp", "wrap") != "wrap"
    build.take_type()
    build.done(3)
    put = build.write(build.operand(0), U32)
    a, b = (build.read(build.operand(at), U32) for at in (1, 2))

    def run(sel: Sel) -> None:
        start, count = a(sel).astype(np.uint64), b(sel).astype(np.uint64)
        if not clamps:
            start, count = start & np.uint64(31), count & np.uint64(31)
        start, count = np.minimum(start, np.uint64(32)), np.minimum(count, np.uint64(32))
        mask = ((np.uint64(1) << count) - np.uint64(1)) << start
        put(sel, mask.astype(np.uint32))

    return Step(run)
