"""Owns turning an instruction into a closure: the table of opcodes, operands by type, guards.

It must not know what any opcode does: families register themselves with `@opcode`. A builder
takes a Build (the instruction and its surroundings) and returns a Step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from ptx.emulator.errors import EmulatorError
from ptx.emulator.formats import TYPES, Type, narrow
from ptx.emulator.lanes import Lanes, Sel
from ptx.emulator.operands import float_of
from ptx.emulator.registers import Get, Put, Reg, RegisterFile
from ptx.emulator.syntax import (
    Immediate,
    Instruction,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from ptx.numerics import Array

Run = Callable[[Sel], None]


class Flow(IntEnum):
    """What the machine does around a step."""

    PLAIN = 0
    BRANCH = 1
    EXIT = 2
    GATHER = 3  # waits for all lanes of a member mask
    BARRIER = 4
    POLL = 5  # plain, and lanes that loop after it may be waiting for others
    WAIT = 6  # `ready` says which lanes may go on


@dataclass
class Step:
    """One decoded instruction; what is not used by its `flow` stays at its default."""

    run: Run
    flow: Flow = Flow.PLAIN
    target: int = -1
    mask: Get | None = None
    full_mask: bool = False
    aligned: bool = False
    n_warps: int = 1  # that gather, the first of a rank that is a multiple
    ready: Callable[[Sel], Array] | None = None
    barrier: Any = None
    guard: Get | None = None
    source: Instruction | None = None
    waits_for: str = ""
    uniform: bool = False


@dataclass
class Build:
    """An instruction being decoded: its words are taken one by one, and none may be left."""

    source: Instruction
    registers: RegisterFile
    lanes: Lanes
    state: Any
    mods: list[str] = field(default_factory=list)

    def refuse(self, why: str) -> EmulatorError:
        """The error for an instruction outside the subset."""
        return EmulatorError(
            "subset", why, line=self.source.line, text=self.source.text, kernel=self.state.name
        )

    def take(self, *words: str) -> str | None:
        """Remove and return the first of `words` among the modifiers, or None."""
        for word in words:
            if word in self.mods:
                self.mods.remove(word)
                return word
        return None

    def take_bits(self, also: str = "") -> Type:
        """A type of plain bits or integers, one value in a register, or of the kind `also`."""
        type_ = self.take_type()
        if type_.n_packed == 2 or type_.kind not in ("b", "u", "s", also):
            raise self.refuse(f"is not for {type_.name}")
        return type_

    def take_type(self) -> Type:
        """Remove and return the last modifier, a type."""
        if not self.mods or self.mods[-1] not in TYPES:
            raise self.refuse(f"needs a type, found {'.'.join(self.mods) or 'nothing'}")
        return TYPES[self.mods.pop()]

    def done(self, n_operands: int | tuple[int, ...]) -> None:
        """Refuse leftover modifiers and a wrong count of operands."""
        if self.mods:
            raise self.refuse(f"modifier .{self.mods[0]} is outside what the emulator runs")
        counts = (n_operands,) if isinstance(n_operands, int) else n_operands
        if len(self.source.operands) not in counts:
            raise self.refuse(f"has {len(self.source.operands)} operands, expected {counts[0]}")

    def operand(self, at: int) -> Operand:
        """The operand at a place."""
        if at >= len(self.source.operands):
            raise self.refuse(f"has {len(self.source.operands)} operands, too few")
        return self.source.operands[at]

    def reg(self, operand: Operand) -> Reg | None:
        """The register of an operand, if it is one."""
        if isinstance(operand, Register):
            return self.registers.regs[operand.name]
        return None

    def read(
        self, operand: Operand, type_: Type, copies: bool = False, relaxed: bool = False
    ) -> Get:
        """A function from lanes to the operand's values in `type_`.

        `relaxed` allows a register wider than the type, as loads, stores and cvt do.
        """
        if isinstance(operand, Register):
            self._check_width(operand, type_, relaxed)
            get = self.registers.reader(operand.name, type_, copies)
            if not operand.negated:
                return get
            return lambda sel: ~get(sel)
        if isinstance(operand, Special):
            return self._special(operand, type_)
        if isinstance(operand, Immediate):
            value = self.literal(operand, type_)
            return lambda sel: value
        if isinstance(operand, Symbol):
            if type_.n_bits < 32 or type_.kind not in "bus":
                raise self.refuse(f"the address of {operand.name} is no {type_.name}")
            address = self.state.address_of(operand.name, self) + operand.offset
            value = type_.dtype.type(address % (1 << type_.n_bits))
            return lambda sel: value
        raise self.refuse(f"{type(operand).__name__.lower()} is not a value")

    def reads(self, operand: Operand, type_: Type, n: int, copies: bool = False) -> list[Get]:
        """The parts of a vector operand, or the single one."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if len(items) != n:
            raise self.refuse(f"a vector of {len(items)}, expected {n}")
        return [self.read(item, type_, copies, relaxed=True) for item in items]

    def write(self, operand: Operand, type_: Type, relaxed: bool = False) -> Put:
        """A function that stores values; a wider register is extended by sign or zeros."""
        if isinstance(operand, Sink):
            return lambda sel, values: None
        if not isinstance(operand, Register) or operand.negated:
            raise self.refuse("the destination is not a register")
        self._check_width(operand, type_, relaxed)
        reg = self.registers.regs[operand.name]
        if reg.type.n_bits == type_.n_bits or type_.kind == "pred":
            return self.registers.writer(operand.name, type_)
        wide = TYPES[f"{'s' if type_.kind == 's' else 'u'}{reg.type.n_bits}"]
        put = self.registers.writer(operand.name, wide)
        raw = type_.dtype if type_.kind in "su" else np.dtype(f"uint{type_.n_bits}")
        if type_.n_packed == 2:
            raise self.refuse("a packed value needs a register of its own width")
        return lambda sel, values: put(sel, _as_bits(values, raw).astype(wide.dtype))

    def literal(self, operand: Immediate, type_: Type) -> Any:
        """A constant in a type, as a numpy scalar or a pair."""
        if type_.kind == "pred":
            return np.asarray(bool(operand.value))
        if type_.kind in ("f32", "f64") and type_.n_packed == 1:
            if operand.kind == "f32" and type_.kind == "f32":
                return np.array([operand.value], np.uint32).view(np.float32)[0]
            if operand.kind == "f64" and type_.kind == "f64":
                return np.array([operand.value], np.uint64).view(np.float64)[0]
            return np.asarray(float_of(operand)).astype(type_.dtype)[()]
        if operand.kind == "float" and type_.kind in ("f16", "bf16") and type_.n_packed == 1:
            return narrow(np.asarray(float_of(operand)), type_.kind)[()]
        if operand.kind == "float":
            raise self.refuse(f"{operand.value} is not a {type_.name}")
        bits = int(operand.value) & ((1 << type_.n_bits) - 1)
        raw = np.array([bits], np.uint64).view(type_.dtype)
        return raw[: type_.n_packed] if type_.n_packed == 2 else raw[0]

    def integer(self, at: int) -> int:
        """An operand that must be an integer constant."""
        operand = self.operand(at)
        if not isinstance(operand, Immediate) or operand.kind != "int":
            raise self.refuse(f"operand {at + 1} must be a constant")
        return int(operand.value)

    def _check_width(self, operand: Register, type_: Type, relaxed: bool) -> None:
        reg = self.registers.regs[operand.name]
        if (reg.type.kind == "pred") != (type_.kind == "pred"):
            raise self.refuse(f"{operand.name} is a {reg.type.name}, expected {type_.name}")
        exact = reg.type.n_bits == type_.n_bits
        if not exact and not (relaxed and reg.type.n_bits > type_.n_bits):
            raise self.refuse(f"{operand.name} is a {reg.type.name}, expected {type_.n_bits} bits")

    def _special(self, operand: Special, type_: Type) -> Get:
        clock = self.state.clock(operand.name)
        if clock is not None:
            return lambda sel: np.full(len(self.lanes.index(sel)), clock(), type_.dtype)
        if operand.name not in self.lanes.special or type_.n_packed == 2:
            raise self.refuse(f"{operand.name} is outside what the emulator runs")
        values = self.lanes.special[operand.name]
        return lambda sel: values[sel].astype(type_.dtype)


def _as_bits(values: Array, raw: np.dtype) -> Array:
    values = np.asarray(values)
    return values.view(raw) if values.dtype.itemsize == raw.itemsize else values.astype(raw)


Builder = Callable[[Build], Step]
OPCODES: dict[str, Builder] = {}


def opcode(*names: str) -> Callable[[Builder], Builder]:
    """Register a builder for the first words of instructions."""

    def register(builder: Builder) -> Builder:
        for name in names:
            OPCODES[name] = builder
        return builder

    return register


def decode(source: Instruction, registers: RegisterFile, lanes: Lanes, state: Any) -> Step:
    """Build one instruction with its guard; EmulatorError names line and opcode."""
    build = Build(source, registers, lanes, state, list(source.mods))
    builder = OPCODES.get(source.opcode)
    if builder is None:
        raise build.refuse(f"opcode {source.opcode} is outside what the emulator runs")
    step = builder(build)
    step.source = source
    if source.guard is not None:
        step.guard = build.read(source.guard, TYPES["pred"])
    return step
