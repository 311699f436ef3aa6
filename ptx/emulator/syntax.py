"""Owns the records of a parsed module: operands, instructions, variables, kernels.

It must not know what any opcode means.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Register:
    """A declared register; predicates may be `negated`."""

    name: str
    negated: bool = False


@dataclass(frozen=True)
class Special:
    """A special register with its dot: `%tid.x`."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant: an int, a float (from a decimal literal), or bits of an f32 or f64 literal."""

    value: int | float
    kind: str


@dataclass(frozen=True)
class Symbol:
    """A variable, parameter or label; of a variable perhaps a place `offset` bytes into it."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """`[base + offset]`; without a base the offset is the address. `coordinates` for tensors."""

    base: "Register | Symbol | None"
    offset: int
    coordinates: "tuple[Operand, ...]" = ()


@dataclass(frozen=True)
class Vector:
    """`{a, b, ...}`."""

    items: "tuple[Operand, ...]"


@dataclass(frozen=True)
class Pair:
    """`p|q`: two destinations."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True)
class Sink:
    """`_`: a destination that nobody reads."""


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Sink


@dataclass(frozen=True)
class Instruction:
    """One statement: `opcode` is the first word, `mods` the dotted rest, `line` counts from 1."""

    line: int
    text: str
    guard: Register | None
    opcode: str
    mods: tuple[str, ...]
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Variable:
    """A variable in a state space: `n_bytes` 0 with `dynamic` is `.extern .shared x[]`."""

    name: str
    space: str
    type: str
    n_bytes: int
    align: int
    initial: bytes | None = None
    dynamic: bool = False


@dataclass(frozen=True)
class KernelParam:
    """A kernel parameter at its offset in the parameter space."""

    name: str
    type: str
    n_bytes: int
    offset: int


@dataclass
class Kernel:
    """An entry: parameters, registers by name with their types, variables, code, labels."""

    name: str
    line: int
    params: list[KernelParam]
    limits: dict[str, tuple[int, ...]]
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass
class Module:
    """A parsed PTX text; `variables` have module scope."""

    version: tuple[int, int]
    target: str
    kernels: dict[str, Kernel]
    variables: list[Variable]
