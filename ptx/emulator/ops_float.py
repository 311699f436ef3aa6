"""Owns floating-point arithmetic: one rounding each, .ftz, .sat, .relu, and the .approx functions.

It must not know memory or lanes' order. Integer forms of shared opcodes are in `ops_integer.py`.
Contract: the PTX ISA's floating-point and half precision instructions. An .approx result is the
correctly rounded one; hardware may differ by the error that the ISA states.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator import exact
from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.formats import Type, canonical, narrow, to_f32, widen
from ptx.emulator.ops_integer import (
    build_integer_add,
    build_integer_div,
    build_integer_mad,
    build_integer_mul,
    simple,
)
from ptx.emulator.registers import Get
from ptx.numerics import Array

FLOATS = ("f32", "f64", "f16", "bf16")
MODES = ("rn", "rz", "rm", "rp")
SMALLEST = np.float32(2.0**-126)
SMALLEST_F16 = 2.0**-14
# Enough to bring what may round to a subnormal float32 among the normal ones.
UP = np.float32(2.0**64)
SATURATING = ("f32", "f16", "f16x2")
FTZ = ("ftz",)
Function = Callable[..., Array]


def flush(x: Array) -> Array:
    """Subnormal float32 become zeros of their sign."""
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x)


def flush_bits(bits: Array, kind: str) -> Array:
    """Subnormal f16 or bf16, as their bits, become zeros of their sign."""
    exponent, sign = np.uint16({"f16": 0x7C00, "bf16": 0x7F80}[kind]), np.uint16(0x8000)
    return np.where(bits & exponent, bits, bits & sign)


def saturate(x: Array) -> Array:
    """To 0..1, NaN to +0."""
    clipped = np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))
    return np.asarray(clipped, x.dtype)


def finish(
    build: Build, type_: Type, f: Function, n: int, words: tuple[str, ...] = ("ftz", "sat"),
    linear_in: tuple[int, ...] = (),
) -> Step:
    """Apply f to the operands, native for f32 and f64, float64 for halves; round it to the type.

    `words` are the modifiers that the opcode may have, of .ftz, .sat and .relu; f32 and f16 have
    them, bf16 no .sat, and .ftz where `words` says `ftz!`; f64 has none. f may round a result below
    the smallest normal number; then it is linear in the operands `linear_in` together.
    """
    kind = type_.kind
    has_ftz = "ftz!" in words or ("ftz" in words and kind in ("f32", "f16"))
    ftz = bool(build.take("ftz")) if has_ftz else False
    sat = bool(build.take("sat")) if "sat" in words and type_.name in SATURATING else False
    relu = build.take("relu") if "relu" in words and kind in ("f16", "bf16") and not sat else None
    build.done(n + 1)
    put = build.write(build.operand(0), type_)
    get = [build.read(build.operand(at), type_) for at in range(1, n + 1)]
    if kind in ("f16", "bf16"):
        get = [_widened(g, kind, ftz) for g in get]
    elif ftz:
        get = [_flushed(g) for g in get]

    def whole(*values: Array) -> Array:
        result = np.asarray(f(*values))
        wide = result
        if ftz and kind == "f32":
            result = _flushed_result(f, values, result, linear_in)
        if sat:
            result = saturate(result)
        if relu:
            result = np.where(np.isnan(result), result, np.maximum(result, 0))
        if kind not in ("f16", "bf16"):
            return result
        bits = narrow(result, kind)
        if not ftz:
            return bits
        if kind == "f16":
            one = widen(narrow(wide / SMALLEST_F16, kind), kind)
            return np.where(np.abs(one) < 1, bits & np.uint16(0x8000), bits)
        return flush_bits(bits, kind)

    if not (ftz or sat or relu) and kind in ("f32", "f64"):
        return Step(simple(put, f, *get))
    return Step(simple(put, whole, *get))


def _flushed_result(
    f: Function, values: tuple[Array, ...], result: Array, linear_in: tuple[int, ...]
) -> Array:
    """Zeros for results that are subnormal: an H200 judges them as rounded to all 24 bits, before
    they lose any for being so small."""
    if not linear_in:
        return flush(result)
    up = f(*(value * UP if at in linear_in else value for at, value in enumerate(values)))
    return np.where(np.abs(up) < SMALLEST * UP, np.copysign(np.float32(0), result), result)


def _widened(get: Get, kind: str, ftz: bool) -> Get:
    if ftz:
        return lambda sel: widen(flush_bits(np.asarray(get(sel)), kind), kind)
    return lambda sel: widen(np.asarray(get(sel)), kind)


def _flushed(get: Get) -> Get:
    return lambda sel: flush(get(sel))


def _mode(build: Build, type_: Type, needed: bool = False) -> str:
    mode = build.take(*MODES)
    if mode not in (None, "rn") and type_.kind != "f32":
        raise build.refuse(f".{mode} of {type_.name} is outside what the emulator runs")
    if mode is None and needed:
        raise build.refuse("needs a rounding modifier")
    return mode or "rn"


def _directed(f: Callable[[Array, Array], Array], mode: str) -> Function:
    def run(a: Array, b: Array) -> Array:
        return to_f32(f(np.asarray(a, np.float64), np.asarray(b, np.float64)), mode)

    return run


@opcode("add", "sub")
def _add(build: Build) -> Step:
    type_, subtracts = build.take_type(), build.source.opcode == "sub"
    if type_.kind not in FLOATS:
        return build_integer_add(build, type_, subtracts)
    mode = _mode(build, type_)
    if mode != "rn":
        sign = -1.0 if subtracts else 1.0
        add = _directed(lambda a, b: exact.add_odd(a, sign * b, mode), mode)
        return finish(build, type_, add, 2)
    f: Function = np.subtract if subtracts else np.add
    if type_.kind == "f32":
        return finish(build, type_, lambda a, b: canonical(f(a, b)), 2)
    return finish(build, type_, f, 2)


@opcode("mul")
def _mul(build: Build) -> Step:
    type_ = build.take_type()
    if type_.kind not in FLOATS:
        return build_integer_mul(build, type_)
    mode = _mode(build, type_)
    if mode != "rn":
        return finish(build, type_, _directed(np.multiply, mode), 2, linear_in=(0,))
    if type_.kind == "f32":
        return finish(
            build, type_, lambda a, b: canonical(np.multiply(a, b)), 2, linear_in=(0,)
        )
    return finish(build, type_, np.multiply, 2)


@opcode("div")
def _div(build: Build) -> Step:
    type_ = build.take_type()
    if type_.kind not in FLOATS:
        return build_integer_div(build, type_)
    how = build.take("approx", "full") if type_.name == "f32" else None
    mode = "rn" if how else _mode(build, type_, needed=True)
    if type_.name == "f32":
        if mode != "rn":
            return finish(build, type_, _directed(np.divide, mode), 2, FTZ, (0,))
        return finish(build, type_, lambda a, b: canonical(np.divide(a, b)), 2, FTZ, (0,))
    if type_.name != "f64":
        raise build.refuse("needs f32 or f64")
    return finish(build, type_, np.divide, 2, ())


@opcode("fma", "mad")
def _fma(build: Build) -> Step:
    type_ = build.take_type()
    if type_.kind not in FLOATS:
        return build_integer_mad(build, type_)
    mode = _mode(build, type_, needed=True)
    if type_.kind == "f64":
        return finish(build, type_, exact.fma_f64, 3)
    if type_.kind == "f32":
        return finish(
            build, type_, lambda a, b, c: exact.fma_f32(a, b, c, mode), 3, linear_in=(0, 2)
        )
    if build.source.opcode == "mad":
        raise build.refuse("needs f32 or f64")
    return finish(
        build, type_, lambda a, b, c: exact.add_odd(a * b, c), 3, ("ftz", "sat", "relu")
    )


def _rounded(fast: Function, slow: Callable[..., object]) -> Function:
    return lambda x: exact.correctly_rounded(np.asarray(x), fast, slow)  # type: ignore[arg-type]


def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


FUNCTIONS: dict[str, tuple[Function, Callable[..., object]]] = {
    "ex2": (np.exp2, exact.exp2_decimal),
    "lg2": (np.log2, exact.log2_decimal),
    "rsqrt": (_rsqrt, exact.rsqrt_decimal),
    "tanh": (np.tanh, exact.tanh_decimal),
    "sin": (np.sin, exact.sin_decimal),
    "cos": (np.cos, exact.cos_decimal),
}


@opcode(*FUNCTIONS)
def _function(build: Build) -> Step:
    name, type_ = build.source.opcode, build.take_type()
    fast, slow = FUNCTIONS[name]
    if not build.take("approx"):
        raise build.refuse("needs .approx")
    if type_.kind == "f64" and name == "rsqrt":
        return finish(build, type_, fast, 1, ())
    if type_.name == "f32":
        return finish(build, type_, _rounded(fast, slow), 1, () if name == "tanh" else FTZ)
    if type_.kind not in ("f16", "bf16") or name not in ("ex2", "tanh"):
        raise build.refuse(f"is not for {type_.name}")
    # Of the halves ex2.bf16 alone has .ftz, and must have it.
    flushes = name == "ex2" and type_.kind == "bf16"
    if flushes and "ftz" not in build.mods:
        raise build.refuse("needs .ftz")
    return finish(build, type_, fast, 1, ("ftz!",) if flushes else ())


@opcode("sqrt", "rcp")
def _root(build: Build) -> Step:
    type_ = build.take_type()
    approx = build.take("approx") if type_.name == "f32" else None
    mode = "rn" if approx else _mode(build, type_, needed=True)
    f: Function = np.sqrt if build.source.opcode == "sqrt" else np.reciprocal
    if type_.name == "f64":
        return finish(build, type_, f, 1, ())
    if type_.name != "f32":
        raise build.refuse("needs f32 or f64")
    return finish(build, type_, lambda x: to_f32(f(np.asarray(x, np.float64)), mode), 1, FTZ)
