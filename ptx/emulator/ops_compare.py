"""Owns comparisons and selections: setp, set, selp, slct.

It must not know memory or lanes' order. Contract: the PTX ISA's comparison instructions.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.formats import TYPES, Type, widen
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_float import FLOATS, flush
from ptx.emulator.ops_integer import simple
from ptx.emulator.registers import Get
from ptx.emulator.syntax import Pair
from ptx.numerics import Array

Compare = Callable[[Array, Array], Array]
ORDERED: dict[str, Compare] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
COMBINE: dict[str, Compare] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
}
PRED = TYPES["pred"]


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def comparison(build: Build, type_: Type) -> Compare:
    """The comparison that the modifiers name; floats order as the ISA says, NaN included."""
    word = build.take(*ORDERED, *UNSIGNED, *(f"{name}u" for name in ORDERED), "num", "nan")
    if word is None:
        raise build.refuse("needs a comparison")
    if type_.kind not in FLOATS:
        if word in UNSIGNED:
            return ORDERED[UNSIGNED[word]]
        if word not in ORDERED:
            raise build.refuse(f".{word} compares floats only")
        return ORDERED[word]
    if word == "num":
        return lambda a, b: ~_unordered(a, b)
    if word == "nan":
        return _unordered
    if word == "ne":
        # numpy says that NaN differs from everything; the ordered comparison is false for it.
        return lambda a, b: (a != b) & ~_unordered(a, b)
    if word in ORDERED:
        return ORDERED[word]
    if word[:-1] not in ORDERED:
        raise build.refuse(f".{word} compares integers only")
    f = ORDERED[word[:-1]]
    return lambda a, b: f(a, b) | _unordered(a, b)


def _operands(build: Build, type_: Type) -> tuple[Get, Get]:
    ftz = build.take("ftz")
    a, b = (build.read(build.operand(at), type_) for at in (1, 2))
    if type_.kind in ("f16", "bf16"):
        return (
            lambda sel: widen(np.asarray(a(sel)), type_.kind),
            lambda sel: widen(np.asarray(b(sel)), type_.kind),
        )
    if ftz:
        return (lambda sel: flush(a(sel))), (lambda sel: flush(b(sel)))
    return a, b


@opcode("setp")
def _setp(build: Build) -> Step:
    type_ = build.take_type()
    if type_.n_packed == 2:
        raise build.refuse("packed comparisons are outside what the emulator runs")
    compare, combine = comparison(build, type_), build.take(*COMBINE)
    a, b = _operands(build, type_)
    build.done(4 if combine else 3)
    target = build.operand(0)
    if not combine and not isinstance(target, Pair):
        return Step(simple(build.write(target, PRED), compare, a, b))
    first = target.first if isinstance(target, Pair) else target
    put = build.write(first, PRED)
    put_other = build.write(target.second, PRED) if isinstance(target, Pair) else None
    other = build.read(build.operand(3), PRED) if combine else None
    join = COMBINE[combine] if combine else None

    def run(sel: Sel) -> None:
        result = compare(a(sel), b(sel))
        opposite = ~result
        if join is not None and other is not None:
            c = other(sel)
            result, opposite = join(result, c), join(opposite, c)
        put(sel, result)
        if put_other is not None:
            put_other(sel, opposite)

    return Step(run)


@opcode("set")
def _set(build: Build) -> Step:
    type_ = build.take_type()
    result = build.take_type()
    compare, combine = comparison(build, type_), build.take(*COMBINE)
    a, b = _operands(build, type_)
    build.done(4 if combine else 3)
    if result.name not in ("u32", "s32", "f32") or type_.n_packed == 2:
        raise build.refuse("needs u32, s32 or f32 as its result")
    put = build.write(build.operand(0), result)
    other = build.read(build.operand(3), PRED) if combine else None
    true = result.dtype.type({"f32": 1, "s": -1}.get(result.kind, 2**32 - 1))

    def run(sel: Sel) -> None:
        holds = compare(a(sel), b(sel))
        if combine and other is not None:
            holds = COMBINE[combine](holds, other(sel))
        put(sel, np.where(holds, true, result.dtype.type(0)))

    return Step(run)


@opcode("selp")
def _selp(build: Build) -> Step:
    type_ = build.take_type()
    build.done(4)
    a, b = (build.read(build.operand(at), type_) for at in (1, 2))
    put, choose = build.write(build.operand(0), type_), build.read(build.operand(3), PRED)
    return Step(simple(put, lambda x, y, p: np.asarray(np.where(p, x, y)), a, b, choose))


@opcode("slct")
def _slct(build: Build) -> Step:
    judge, type_ = build.take_type(), build.take_type()
    build.take("ftz")
    build.done(4)
    a, b = (build.read(build.operand(at), type_) for at in (1, 2))
    put, c = build.write(build.operand(0), type_), build.read(build.operand(3), judge)
    return Step(simple(put, lambda x, y, z: np.asarray(np.where(z >= 0, x, y)), a, b, c))
