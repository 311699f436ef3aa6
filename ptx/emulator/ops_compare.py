"""Owns comparisons and selections: setp, set, selp, slct.

It must not know memory or lanes' order. Contract: the PTX ISA's comparison instructions.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.formats import TYPES, Type, widen
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_float import FLOATS, flush, flush_bits
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
        if word in UNSIGNED and type_.kind == "u":
            return ORDERED[UNSIGNED[word]]
        if word not in ORDERED or (type_.kind == "b" and word not in ("eq", "ne")):
            raise build.refuse(f".{word} does not compare {type_.name}")
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
        raise build.refuse(f".{word} does not compare {type_.name}")
    f = ORDERED[word[:-1]]
    return lambda a, b: f(a, b) | _unordered(a, b)


def _operands(build: Build, type_: Type) -> tuple[Get, Get]:
    ftz = bool(build.take("ftz")) if type_.kind in ("f32", "f16") else False
    a, b = (_operand(build, at, type_, ftz) for at in (1, 2))
    return a, b


def _operand(build: Build, at: int, type_: Type, ftz: bool) -> Get:
    get, kind = build.read(build.operand(at), type_), type_.kind
    if kind in ("f16", "bf16"):
        if ftz:
            return lambda sel: widen(flush_bits(np.asarray(get(sel)), kind), kind)
        return lambda sel: widen(np.asarray(get(sel)), kind)
    return (lambda sel: flush(get(sel))) if ftz else get


def _not_packed_integers(build: Build, type_: Type) -> None:
    if type_.name == "f32x2" or (type_.n_packed == 2 and type_.kind not in FLOATS):
        raise build.refuse(f"is not for {type_.name}")


@opcode("setp")
def _setp(build: Build) -> Step:
    type_ = build.take_type()
    _not_packed_integers(build, type_)
    compare, combine = comparison(build, type_), build.take(*COMBINE)
    a, b = _operands(build, type_)
    build.done(4 if combine else 3)
    target = build.operand(0)
    if type_.kind in ("f16", "bf16") and isinstance(target, Pair) != (type_.n_packed == 2):
        raise build.refuse("packed halves need two predicates, single ones take one")
    if not combine and not isinstance(target, Pair):
        return Step(simple(build.write(target, PRED), compare, a, b))
    first = target.first if isinstance(target, Pair) else target
    put = build.write(first, PRED)
    put_other = build.write(target.second, PRED) if isinstance(target, Pair) else None
    other = build.read(build.operand(3), PRED) if combine else None
    join = COMBINE[combine] if combine else None

    def run(sel: Sel) -> None:
        result = compare(a(sel), b(sel))
        if type_.n_packed == 2:
            # Each predicate is of a half of its own.
            result, opposite = result[..., 0], result[..., 1]
        else:
            opposite = ~result
        if join is not None and other is not None:
            c = other(sel)
            result, opposite = join(result, c), join(opposite, c)
        put(sel, result)
        if put_other is not None:
            put_other(sel, opposite)

    return Step(run)


TRUE = {"f32": np.float32(1), "f16": np.uint16(0x3C00), "bf16": np.uint16(0x3F80)}
WORDS = ("u32", "s32")


def _settable(result: Type, type_: Type) -> bool:
    """Whether set gives such a result of such operands."""
    if type_.n_packed == 2:
        return result.name in (*WORDS, type_.name)
    if type_.kind == "bf16":
        return result.name in (*WORDS, "u16", "s16", "bf16")
    if type_.kind == "f16":
        return result.name in (*WORDS, "u16", "s16", "f16", "bf16")
    return result.name in (*WORDS, "f32", "f16", "bf16") and type_.n_bits > 8


@opcode("set")
def _set(build: Build) -> Step:
    type_ = build.take_type()
    result = build.take_type()
    _not_packed_integers(build, type_)
    compare, combine = comparison(build, type_), build.take(*COMBINE)
    a, b = _operands(build, type_)
    build.done(4 if combine else 3)
    if not _settable(result, type_):
        raise build.refuse(f"gives no {result.name} of {type_.name}")
    # Of packed halves each gives half a word, whatever the result's name.
    cell = TYPES["u16x2"] if type_.n_packed == 2 and result.name in WORDS else result
    put = build.write(build.operand(0), cell)
    other = build.read(build.operand(3), PRED) if combine else None
    true: Any = TRUE[cell.kind] if cell.kind in TRUE else ~cell.dtype.type(0)

    def run(sel: Sel) -> None:
        holds = compare(a(sel), b(sel))
        if combine and other is not None:
            c = np.asarray(other(sel))
            holds = COMBINE[combine](holds, c[..., None] if type_.n_packed == 2 else c)
        put(sel, np.where(holds, true, cell.dtype.type(0)))

    return Step(run)


@opcode("selp")
def _selp(build: Build) -> Step:
    type_ = build.take_type()
    if type_.n_packed == 2 or type_.n_bits not in (16, 32, 64) or type_.kind in ("f16", "bf16"):
        raise build.refuse(f"is not for {type_.name}")
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
