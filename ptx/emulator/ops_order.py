"""Owns what compares or changes signs of floats: min, max, abs, neg, copysign, testp.

It must not know memory or lanes' order. Contract: the PTX ISA's floating-point and half precision
instructions. The ISA leaves open which NaN neg and abs give. ptxas makes additions of them, for
halves too, so here it is the one NaN that arithmetic gives: seen on a card for f32, for f16 and
bf16 only in what ptxas 13.0 makes of them.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.formats import TYPES, Type, canonical
from ptx.emulator.ops_float import FLOATS, FTZ, Function, finish
from ptx.emulator.ops_integer import simple
from ptx.numerics import Array


def _least(a: Array, b: Array) -> Array:
    # The two zeros compare equal, yet the ISA orders them.
    return np.where(a == b, np.where(np.signbit(a), a, b), _numbers(a, b, np.minimum(a, b)))


def _greatest(a: Array, b: Array) -> Array:
    return np.where(a == b, np.where(np.signbit(a), b, a), _numbers(a, b, np.maximum(a, b)))


def _numbers(a: Array, b: Array, result: Array) -> Array:
    """`result`, where it is NaN the operand that is a number; fmin and fmax miss some such lanes.
    """
    if not np.isnan(result).any():
        return result
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))


@opcode("min", "max")
def _min(build: Build) -> Step:
    type_, smaller = build.take_type(), build.source.opcode == "min"
    if type_.kind not in FLOATS:
        return _integer_min(build, type_, smaller)
    if type_.name == "f32x2":
        raise build.refuse("is not for f32x2")
    keeps_nan = signs = None
    if type_.name != "f64":
        keeps_nan, signs = build.take("NaN"), build.take("xorsign")
        if signs and not build.take("abs"):
            raise build.refuse(".xorsign needs .abs")
    f = _least if smaller else _greatest

    def run(a: Array, b: Array) -> Array:
        sizes = (np.abs(a), np.abs(b)) if signs else (a, b)
        result = f(*sizes)
        if keeps_nan:
            result = np.where(np.isnan(a) | np.isnan(b), np.nan, result).astype(result.dtype)
        if signs:
            # A NaN's sign counts too.
            negative = np.signbit(a) ^ np.signbit(b)
            result = np.where(negative, -result, result)
        return canonical(result) if type_.kind == "f32" else result

    return finish(build, type_, run, 2, FTZ)


def _integer_min(build: Build, type_: Type, smaller: bool) -> Step:
    relu = build.take("relu") if type_.name in ("s32", "s16x2") else None
    build.done(3)
    put = build.write(build.operand(0), type_)
    get = [build.read(build.operand(at), type_) for at in (1, 2)]
    pick: Function = np.minimum if smaller else np.maximum
    if relu:
        return Step(simple(put, lambda a, b: np.maximum(pick(a, b), 0), *get))
    return Step(simple(put, pick, *get))


@opcode("abs", "neg")
def _sign(build: Build) -> Step:
    type_, negates = build.take_type(), build.source.opcode == "neg"
    plain: Function = np.negative if negates else np.abs
    if type_.kind not in FLOATS:
        if type_.kind != "s" or type_.n_packed == 2 or type_.n_bits < 16:
            raise build.refuse(f"is not for {type_.name}")
        build.done(2)
        put = build.write(build.operand(0), type_)
        return Step(simple(put, plain, build.read(build.operand(1), type_)))
    if type_.name == "f32x2":
        raise build.refuse("is not for f32x2")
    if type_.kind == "f32":
        return finish(build, type_, lambda x: canonical(plain(x)), 1, FTZ)
    # Narrowing a half makes its NaN the one NaN.
    return finish(build, type_, plain, 1, FTZ)


@opcode("copysign")
def _copysign(build: Build) -> Step:
    type_ = build.take_type()
    if type_.name not in ("f32", "f64"):
        raise build.refuse(f"is not for {type_.name}")
    return finish(build, type_, lambda a, b: np.copysign(b, a), 2, ())


TESTS: dict[str, Callable[[Array], Array]] = {
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
