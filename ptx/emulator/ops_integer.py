"""Owns integer arithmetic: wrapping, widening, saturating, with carries, and dot products.

It must not know lanes' order or memory. Contract: the PTX ISA's integer instructions.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ptx.emulator.decode import Build, Run, Step, opcode
from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES, Type
from ptx.emulator.lanes import Sel
from ptx.emulator.registers import Get, Put
from ptx.numerics import Array

Binary = Callable[[Array, Array], Array]
CARRY = "%carry"


def simple(put: Put, f: Callable[..., Array], *get: Get) -> Run:
    """A step without conditions: put f of the operands."""
    if len(get) == 1:
        first = get[0]
        return lambda sel: put(sel, f(first(sel)))
    if len(get) == 2:
        first, second = get
        return lambda sel: put(sel, f(first(sel), second(sel)))
    first, second, third = get
    return lambda sel: put(sel, f(first(sel), second(sel), third(sel)))


def high_product(a: Array, b: Array, type_: Type) -> Array:
    """The upper half of the full product."""
    if type_.n_bits < 64:
        wide = TYPES[f"{type_.kind}{2 * type_.n_bits}"].dtype
        return np.asarray((a.astype(wide) * b.astype(wide) >> type_.n_bits).astype(type_.dtype))
    x, y = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    other = x0 * y1 + (middle & low)
    high = np.asarray(x1 * y1 + (middle >> half) + (other >> half))
    if type_.kind == "s":
        high = high - np.where(np.asarray(a) < 0, y, 0) - np.where(np.asarray(b) < 0, x, 0)
    return high.view(type_.dtype)


def _wide(a: Array, b: Array, type_: Type) -> Array:
    dtype = TYPES[f"{type_.kind}{2 * type_.n_bits}"].dtype
    return np.asarray(a.astype(dtype) * b.astype(dtype))


def product(build: Build, type_: Type) -> tuple[Binary, Type]:
    """The multiplication that .lo, .hi or .wide asks for, and the type of its result."""
    half = build.take("lo", "hi", "wide")
    if half == "lo":
        return np.multiply, type_
    if half == "hi":
        return (lambda a, b: high_product(a, b, type_)), type_
    if half == "wide" and type_.n_bits in (16, 32):
        return (lambda a, b: _wide(a, b, type_)), TYPES[f"{type_.kind}{2 * type_.n_bits}"]
    raise build.refuse("needs .lo, .hi or .wide")


def build_integer_add(build: Build, type_: Type, subtracts: bool) -> Step:
    """add, sub on integers, with .sat for s32 and .cc for a carry out."""
    saturates, carries = build.take("sat") if type_.name == "s32" else None, build.take("cc")
    build.done(3)
    if subtracts and type_.n_packed == 2:
        raise build.refuse(f"is not for {type_.name}")
    put = build.write(build.operand(0), type_)
    a, b = (build.read(build.operand(at), type_) for at in (1, 2))
    f: Binary = np.subtract if subtracts else np.add
    if saturates:
        bounds = np.iinfo(np.int32)

        def clipped(x: Array, y: Array) -> Array:
            wide = f(x.astype(np.int64), y.astype(np.int64))
            return np.clip(wide, bounds.min, bounds.max).astype(np.int32)

        return Step(simple(put, clipped, a, b))
    if carries:
        return _with_carry(build, type_, subtracts, False, True)
    return Step(simple(put, f, a, b))


def _with_carry(build: Build, type_: Type, subtracts: bool, reads: bool, writes: bool) -> Step:
    unsigned = TYPES[f"u{type_.n_bits}"]
    put = build.write(build.operand(0), unsigned)
    a, b = (build.read(build.operand(at), unsigned) for at in (1, 2))
    carry: Array = build.state.scratch(CARRY)

    def run(sel: Sel) -> None:
        x, y = np.asarray(a(sel)), np.asarray(b(sel))
        bit = carry[sel] if reads else np.zeros(len(build.lanes.index(sel)), bool)
        if subtracts:
            first = x - y
            out = (x < y) | (first < bit)
            total = first - bit.astype(x.dtype)
        else:
            first = x + y
            total = first + bit.astype(x.dtype)
            out = (first < x) | (total < first)
        put(sel, total)
        if writes:
            carry[sel] = out

    return Step(run)


@opcode("addc", "subc")
def _carry_in(build: Build) -> Step:
    type_, writes = build.take_bits(), bool(build.take("cc"))
    build.done(3)
    return _with_carry(build, type_, build.source.opcode == "subc", True, writes)


def build_integer_mul(build: Build, type_: Type) -> Step:
    """mul on integers."""
    f, result = product(build, type_)
    build.done(3)
    put = build.write(build.operand(0), result)
    return Step(simple(put, f, *(build.read(build.operand(at), type_) for at in (1, 2))))


def build_integer_mad(build: Build, type_: Type) -> Step:
    """mad on integers."""
    f, result = product(build, type_)
    build.done(4)
    put = build.write(build.operand(0), result)
    a, b = (build.read(build.operand(at), type_) for at in (1, 2))
    c = build.read(build.operand(3), result)
    return Step(simple(put, lambda x, y, z: f(x, y) + z, a, b, c))


@opcode("mul24", "mad24")
def _mul24(build: Build) -> Step:
    raise build.refuse("use mul.lo: 24-bit products are outside what the emulator runs")


def quotient(a: Array, b: Array, type_: Type, remainder: bool) -> Array:
    """Division that truncates; the divisor is not zero."""
    if type_.kind != "s":
        return a % b if remainder else a // b
    # numpy floors; magnitudes as unsigned numbers also survive the most negative one.
    unsigned = np.dtype(f"uint{type_.n_bits}")
    x, y = (np.where(v < 0, -v.view(unsigned), v.view(unsigned)) for v in (a, b))
    size = x % y if remainder else x // y
    negative = (a < 0) if remainder else ((a < 0) != (b < 0))
    result: Array = np.where(negative, -size, size).astype(unsigned).view(type_.dtype)
    return result


def build_integer_div(build: Build, type_: Type) -> Step:
    """div and rem on integers; a zero divisor has no defined result and is a fault."""
    build.done(3)
    put = build.write(build.operand(0), type_)
    a, b = (build.read(build.operand(at), type_) for at in (1, 2))
    remainder, lanes = build.source.opcode == "rem", build.lanes

    def run(sel: Sel) -> None:
        x, y = np.asarray(a(sel)), np.asarray(b(sel))
        zero = y == 0
        if zero.any():
            bad = lanes.index(sel)[np.broadcast_to(zero, len(lanes.index(sel)))]
            raise Fault("undefined", "divides by zero", bad)
        put(sel, quotient(x, y, type_, remainder))

    return Step(run)


@opcode("rem")
def _rem(build: Build) -> Step:
    return build_integer_div(build, build.take_bits())


@opcode("sad")
def _sad(build: Build) -> Step:
    type_ = build.take_bits()
    build.done(4)
    get = [build.read(build.operand(at), type_) for at in (1, 2, 3)]
    put = build.write(build.operand(0), type_)
    return Step(simple(put, lambda a, b, c: c + np.where(a > b, a - b, b - a), *get))


@opcode("dp4a", "dp2a")
def _dot(build: Build) -> Step:
    kinds, build.mods = build.mods[-2:], build.mods[:-2]
    half = build.take("lo", "hi") if build.source.opcode == "dp2a" else None
    build.done(4)
    if len(kinds) != 2 or set(kinds) - {"u32", "s32"}:
        raise build.refuse("needs the types u32 or s32")
    result = TYPES["s32" if "s32" in kinds else "u32"]
    put, word = build.write(build.operand(0), TYPES["u32"]), TYPES["u32"]
    a, b, c = (build.read(build.operand(at), word) for at in (1, 2, 3))
    a_type = ("int" if kinds[0] == "s32" else "uint") + ("16" if half else "8")
    b_type = "int8" if kinds[1] == "s32" else "uint8"
    first = 2 if half == "hi" else 0

    def parts(x: Any, dtype: str) -> Array:
        raw = np.ascontiguousarray(np.atleast_1d(x)).view(np.dtype(dtype))
        return raw.reshape(-1, 4 // np.dtype(dtype).itemsize).astype(np.int64)

    def run(sel: Sel) -> None:
        x, y = parts(a(sel), a_type), parts(b(sel), b_type)
        if half:
            y = y[:, first : first + 2]
        total = (x * y).sum(axis=1).astype(np.uint32) + c(sel)
        put(sel, total)

    assert result.n_bits == word.n_bits
    return Step(run)


def saturated_s32(values: Array) -> Array:
    """64-bit sums clipped to what s32 holds."""
    bounds = np.iinfo(np.int32)
    return np.clip(values, bounds.min, bounds.max).astype(np.int32)
