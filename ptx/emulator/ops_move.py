"""Owns moves: mov with packing, cvta, isspacep.

It must not know lanes' order. Contract: the PTX ISA's data movement instructions.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.formats import TYPES, Type
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_integer import simple
from ptx.emulator.registers import Reg
from ptx.emulator.spaces import WINDOWS
from ptx.emulator.syntax import Operand, Sink, Vector


def carry_taint(
    build: Build, sources: Sequence[Operand], targets: Sequence[Operand]
) -> Callable[[Sel], None]:
    """A function that hands the taint of source registers on to the target registers."""
    read = [reg for reg in map(build.reg, sources) if reg is not None]
    written = [reg for reg in map(build.reg, targets) if reg is not None]

    def carry(sel: Sel) -> None:
        tainted = [reg for reg in read if reg.taint is not None]
        if tainted:
            _spread(tainted, written, sel)

    return carry


def _spread(tainted: list[Reg], written: list[Reg], sel: Sel) -> None:
    taint = np.maximum.reduce([reg.taint[sel] for reg in tainted if reg.taint is not None])
    for reg in written:
        reg.mark(sel, taint, tainted[0].origin)


@opcode("mov")
def _mov(build: Build) -> Step:
    type_ = build.take_type()
    build.done(2)
    target, source = build.operand(0), build.operand(1)
    if type_.n_packed == 2 and type_.n_bits < 128:
        raise build.refuse(f"is not for {type_.name}: use b{type_.n_bits}")
    if isinstance(source, Vector):
        return _pack(build, type_, target, source)
    if isinstance(target, Vector):
        return _unpack(build, type_, target, source)
    put, get = build.write(target, type_), build.read(source, type_, copies=True)
    if build.reg(source) is None:
        return Step(simple(put, lambda x: x, get))
    carry = carry_taint(build, [source], [target])

    def run(sel: Sel) -> None:
        put(sel, get(sel))
        carry(sel)

    return Step(run)


def _part(build: Build, type_: Type, n_parts: int) -> Type:
    """The type of each of the parts that a word is made of."""
    name = f"b{type_.n_bits // max(1, n_parts)}"
    if n_parts not in (2, 4, 8) or name not in TYPES or type_.kind == "pred":
        raise build.refuse(f"{type_.name} is not {n_parts} whole parts")
    return TYPES[name]


def _pack(build: Build, type_: Type, target: Operand, source: Vector) -> Step:
    part = _part(build, type_, len(source.items))
    get = build.reads(source, part, len(source.items), copies=True)
    put, carry = build.write(target, type_), carry_taint(build, [*source.items], [target])

    def run(sel: Sel) -> None:
        n = len(build.lanes.numbers[sel])
        parts = np.stack([np.broadcast_to(g(sel), n) for g in get], axis=1)
        put(sel, parts.view(type_.dtype)[:, 0] if type_.n_bits < 128 else parts)
        carry(sel)

    return Step(run)


def _unpack(build: Build, type_: Type, target: Vector, source: Operand) -> Step:
    part = _part(build, type_, len(target.items))
    get = build.read(source, type_, copies=True)
    puts = [build.write(item, part) for item in target.items]
    kept = [item for item in target.items if not isinstance(item, Sink)]
    carry = carry_taint(build, [source], kept)

    def run(sel: Sel) -> None:
        n = len(build.lanes.numbers[sel])
        whole = np.ascontiguousarray(get(sel))
        shape = (n, 2) if type_.n_bits == 128 else (n,)
        parts = np.array(np.broadcast_to(whole, shape)).view(part.dtype).reshape(n, len(puts))
        for at, put in enumerate(puts):
            put(sel, parts[:, at])
        carry(sel)

    return Step(run)


@opcode("cvta")
def _cvta(build: Build) -> Step:
    type_, to = build.take_type(), build.take("to")
    space = build.take("global", "shared::cta", "shared::cluster", "shared", "local", "const",
                       "param")
    build.done(2)
    if space is None:
        raise build.refuse("needs a state space")
    window = np.uint64(WINDOWS[space.partition("::")[0]])
    put, get = build.write(build.operand(0), type_), build.read(build.operand(1), type_)
    if to:
        return Step(simple(put, lambda x: x - window, get))
    return Step(simple(put, lambda x: x + window, get))


@opcode("isspacep")
def _isspacep(build: Build) -> Step:
    space = build.take("global", "shared::cta", "shared", "local", "const", "param")
    build.done(2)
    if space is None:
        raise build.refuse("needs a state space")
    put, get = (
        build.write(build.operand(0), TYPES["pred"]), build.read(build.operand(1), TYPES["u64"])
    )
    state, word = build.state, space.partition("::")[0]
    return Step(simple(put, lambda x: state.in_window(np.asarray(x), word), get))
