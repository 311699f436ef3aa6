"""Owns floating-point arithmetic: one rounding each, .ftz, .sat, .relu, and the .approx functions.

It must not know memory or lanes' order. Integer forms of shared opcodes are in `ops_integer.py`.
Contract: the PTX ISA's floating-point, half and mixed precision instructions. An .approx result
is the correctly rounded one; hardware may differ by the error that the ISA states.
It is long because each opcode is a few lines of its own.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator import exact
from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.formats import TYPES, Type, canonical, narrow, to_f32, widen
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
Function = Callable[..., Array]


def flush(x: Array) -> Array:
    """Subnormal float32 become zeros of their sign."""
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x)


def saturate(x: Array) -> Array:
    """To 0..1, NaN to +0."""
    clipped = np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))
    return np.asarray(clipped, x.dtype)


def finish(build: Build, type_: Type, f: Function, n: int) -> Step:
    """Take .ftz, .sat, .relu; apply f to the operands (native for f32 and f64, else float64)."""
    ftz, sat, relu = build.take("ftz"), build.take("sat"), build.take("relu")
    build.done(n + 1)
    put = build.write(build.operand(0), type_)
    get = [build.read(build.operand(at), type_) for at in range(1, n + 1)]
    kind = type_.kind
    if kind in ("f16", "bf16"):
        get = [_widened(g, kind) for g in get]
    elif ftz and kind == "f32":
        get = [_flushed(g) for g in get]

    def whole(*values: Array) -> Array:
        result = np.asarray(f(*values))
        if ftz and kind == "f32":
            result = flush(result)
        if sat:
            result = saturate(result)
        if relu:
            result = np.where(np.isnan(result), result, np.maximum(result, 0))
        return narrow(result, kind) if kind in ("f16", "bf16") else result

    if not (ftz or sat or relu) and kind in ("f32", "f64"):
        return Step(simple(put, f, *get))
    return Step(simple(put, whole, *get))


def _widened(get: Get, kind: str) -> Get:
    return lambda sel: widen(np.asarray(get(sel)), kind)


def _flushed(get: Get) -> Get:
    return lambda sel: flush(get(sel))


def _mode(build: Build, type_: Type) -> str:
    mode = build.take(*MODES) or "rn"
    if mode != "rn" and type_.kind != "f32":
        raise build.refuse(f".{mode} of {type_.name} is outside what the emulator runs")
    return mode


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
        return finish(build, type_, _directed(lambda a, b: exact.add_odd(a, sign * b), mode), 2)
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
        return finish(build, type_, _directed(np.multiply, mode), 2)
    if type_.kind == "f32":
        return finish(build, type_, lambda a, b: canonical(np.multiply(a, b)), 2)
    return finish(build, type_, np.multiply, 2)


@opcode("div")
def _div(build: Build) -> Step:
    type_ = build.take_type()
    if type_.kind not in FLOATS:
        return build_integer_div(build, type_)
    how = build.take("approx", "full")
    mode = "rn" if how else _mode(build, type_)
    if type_.kind == "f32":
        if mode != "rn":
            return finish(build, type_, _directed(np.divide, mode), 2)
        return finish(build, type_, lambda a, b: canonical(np.divide(a, b)), 2)
    return finish(build, type_, np.divide, 2)


@opcode("fma", "mad")
def _fma(build: Build) -> Step:
    type_ = build.take_type()
    if type_.kind not in FLOATS:
        return build_integer_mad(build, type_)
    mode = _mode(build, type_)
    if type_.kind == "f64":
        return finish(build, type_, exact.fma_f64, 3)
    if type_.kind == "f32":
        return finish(build, type_, lambda a, b, c: exact.fma_f32(a, b, c, mode), 3)
    return finish(build, type_, lambda a, b, c: exact.add_odd(a * b, c), 3)


def _least(a: Array, b: Array) -> Array:
    # The two zeros compare equal, yet the ISA orders them.
    return np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))


def _greatest(a: Array, b: Array) -> Array:
    return np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))


@opcode("min", "max")
def _min(build: Build) -> Step:
    type_, smaller = build.take_type(), build.source.opcode == "min"
    if type_.kind not in FLOATS:
        relu = build.take("relu")
        build.done(3)
        put = build.write(build.operand(0), type_)
        get = [build.read(build.operand(at), type_) for at in (1, 2)]
        pick: Function = np.minimum if smaller else np.maximum
        if relu:
            return Step(simple(put, lambda a, b: np.maximum(pick(a, b), 0), *get))
        return Step(simple(put, pick, *get))
    keeps_nan = build.take("NaN")
    f = _least if smaller else _greatest

    def run(a: Array, b: Array) -> Array:
        result = f(a, b)
        if keeps_nan:
            result = np.where(np.isnan(a) | np.isnan(b), np.nan, result).astype(result.dtype)
        return canonical(result) if type_.kind == "f32" else result

    return finish(build, type_, run, 2)


@opcode("abs", "neg")
def _sign(build: Build) -> Step:
    type_, negates = build.take_type(), build.source.opcode == "neg"
    if type_.kind not in FLOATS:
        build.done(2)
        f: Function = np.negative if negates else np.abs
        put = build.write(build.operand(0), type_)
        return Step(simple(put, f, build.read(build.operand(1), type_)))
    if type_.kind in ("f16", "bf16"):
        build.take("ftz")
        build.done(2)
        put = build.write(build.operand(0), type_)
        top = np.uint16(0x8000)
        bits: Function = (lambda x: x ^ top) if negates else (lambda x: x & ~top)
        return Step(simple(put, bits, build.read(build.operand(1), type_)))
    plain = np.negative if negates else np.abs
    if type_.kind == "f32":
        # A card gives its one NaN here, whatever sign the operand had.
        return finish(build, type_, lambda x: canonical(plain(x)), 1)
    return finish(build, type_, plain, 1)


@opcode("copysign")
def _copysign(build: Build) -> Step:
    return finish(build, build.take_type(), lambda a, b: np.copysign(b, a), 2)


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
    type_, approx = build.take_type(), build.take("approx")
    fast, slow = FUNCTIONS[build.source.opcode]
    if type_.kind == "f64" and build.source.opcode == "rsqrt":
        return finish(build, type_, fast, 1)
    if not approx or type_.kind == "f64":
        raise build.refuse("needs .approx and a type of at most 32 bits")
    if type_.kind == "f32":
        return finish(build, type_, _rounded(fast, slow), 1)
    return finish(build, type_, fast, 1)


@opcode("sqrt", "rcp")
def _root(build: Build) -> Step:
    type_, approx = build.take_type(), build.take("approx")
    mode = "rn" if approx else _mode(build, type_)
    f: Function = np.sqrt if build.source.opcode == "sqrt" else np.reciprocal
    if type_.kind == "f64":
        return finish(build, type_, f, 1)
    if type_.kind != "f32":
        raise build.refuse("needs f32 or f64")
    return finish(build, type_, lambda x: to_f32(f(np.asarray(x, np.float64)), mode), 1)


TESTS: dict[str, Function] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
    "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny),
}


@opcode("testp")
def _testp(build: Build) -> Step:
    type_, test = build.take_type(), build.take(*TESTS)
    build.done(2)
    if test is None or type_.name not in ("f32", "f64"):
        raise build.refuse("needs a test and f32 or f64")
    put = build.write(build.operand(0), TYPES["pred"])
    return Step(simple(put, TESTS[test], build.read(build.operand(1), type_)))
