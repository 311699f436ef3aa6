"""Owns reading operands and literals of one PTX statement.

It must not know opcodes. Contract: the PTX ISA's constants, constant expressions and operands.
"""

import ast
import operator
import re
import struct
from collections.abc import Callable

from ptx.emulator.errors import EmulatorError
from ptx.emulator.syntax import (
    Address,
    Immediate,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

SPECIAL = re.compile(
    r"%(?:n?tid|n?ctaid|cluster_n?cta(?:id|rank)|n?clusterid|laneid|n?warpid|n?smid|gridid|"
    r"lanemask_(?:eq|le|lt|ge|gt)|clock(?:64|_hi)?|globaltimer(?:_lo|_hi)?|is_explicit_cluster|"
    r"dynamic_smem_size|total_smem_size|aggr_smem_size)(?:\.[xyz])?"
)
F32, F64 = re.compile(r"0[fF]([0-9a-fA-F]{8})"), re.compile(r"0[dD]([0-9a-fA-F]{16})")
FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?")
OPERATORS: dict[type, Callable[..., int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
# numpy-free packing of initialisers: struct's letter for each type.
LETTERS = {"8": "B", "16": "H", "32": "I", "64": "Q"}
MAX_SHIFT = 64


def constant(text: str, line: int, statement: str) -> int:
    """An integer constant expression."""
    # PTX octal and unsigned suffixes, and its division, in Python's words.
    words = re.sub(r"\b0([0-7]+)[uU]?\b", r"0o\1", text)
    words = re.sub(r"\b(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uU]\b", r"\1", words)
    words = words.replace("WARP_SZ", "32").replace("/", "//").strip()
    try:
        return _value(ast.parse(words, mode="eval").body)
    except (SyntaxError, KeyError, ZeroDivisionError, ValueError, RecursionError):
        raise EmulatorError(
            "subset", f"{text.strip()!r} is not a constant", line=line, text=statement[:120]
        ) from None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.LShift | ast.RShift) and not 0 <= right < MAX_SHIFT:
            raise ValueError
        return OPERATORS[type(node.op)](left, right)
    raise ValueError


def initial_bytes(text: str, type_name: str, line: int, statement: str) -> bytes:
    """The bytes of an initialiser: a constant, or (nested) braces of constants."""
    letter = LETTERS[type_name.lstrip("busf")]
    out = bytearray()
    for part in filter(str.strip, re.split(r"[{},]", text)):
        literal = literal_of(part.strip(), line, statement)
        if literal.kind == "int" and type_name[0] != "f":
            mask = (1 << 8 * struct.calcsize(letter)) - 1
            out += struct.pack("<" + letter, int(literal.value) & mask)
        else:
            out += struct.pack({"I": "<f", "Q": "<d", "H": "<e"}[letter], float_of(literal))
    return bytes(out)


def literal_of(text: str, line: int, statement: str) -> Immediate:
    """A literal or constant expression."""
    if found := F32.fullmatch(text):
        return Immediate(int(found[1], 16), "f32")
    if found := F64.fullmatch(text):
        return Immediate(int(found[1], 16), "f64")
    if FLOAT.fullmatch(text) and re.search(r"[.eE]", text):
        return Immediate(float(text), "float")
    return Immediate(constant(text, line, statement), "int")


def float_of(literal: Immediate) -> float:
    """The value of a literal of any kind."""
    if literal.kind == "f32":
        return float(struct.unpack("<f", struct.pack("<I", literal.value))[0])
    if literal.kind == "f64":
        return float(struct.unpack("<d", struct.pack("<Q", literal.value))[0])
    return float(literal.value)


class OperandReader:
    """Reads the operands of one statement; `find` gives a visible register's unique name,
    `name_of` that of a variable, or the name itself."""

    def __init__(
        self, find: Callable[[str], str | None], name_of: Callable[[str], str], line: int,
        statement: str, kernel: str,
    ) -> None:
        self._find, self._name_of = find, name_of
        self._line = line
        self._statement = " ".join(statement.split())
        self._kernel = kernel

    def read(self, text: str) -> tuple[Operand, ...]:
        """All operands, separated by commas outside brackets and braces."""
        return tuple(self._operand(part) for part in self.split(text) if part)

    def split(self, text: str) -> list[str]:
        """The operands as text."""
        parts, depth = [""], 0
        for letter in text:
            depth += {"[": 1, "{": 1, "(": 1, "]": -1, "}": -1, ")": -1}.get(letter, 0)
            if letter == "," and not depth:
                parts.append("")
            else:
                parts[-1] += letter
        return [part.strip() for part in parts]

    def _operand(self, text: str) -> Operand:
        if text == "_":
            return Sink()
        if text.startswith("[") and text.endswith("]"):
            return self._address(text[1:-1].strip())
        if text.startswith("{") and text.endswith("}"):
            return Vector(self.read(text[1:-1]))
        if "|" in text and not text[0].isdigit() and text[0] != "(":
            first, second = text.split("|", 1)
            return Pair(self._operand(first.strip()), self._operand(second.strip()))
        negated = text.startswith("!")
        name = text[negated:].strip()
        register = self._find(name)
        if register is not None:
            return Register(register, negated)
        if SPECIAL.fullmatch(text):
            return Special(text)
        found = re.fullmatch(r"([A-Za-z_$%][\w$]*)\s*(?:([+-])\s*(.+))?", text, re.DOTALL)
        if found and found[1] != "WARP_SZ":
            return Symbol(self._name_of(found[1]), self._offset(found))
        return literal_of(text, self._line, self._statement)

    def _offset(self, found: re.Match[str]) -> int:
        """The constant behind a name, with its sign; none is 0."""
        if not found[2]:
            return 0
        return constant(found[2] + "(" + found[3] + ")", self._line, self._statement)

    def _address(self, text: str) -> Address:
        base, *more = self.split(text)
        coordinates = tuple(self._operand(part) for part in more)
        found = re.fullmatch(r"([A-Za-z_$%][\w$]*)\s*(?:([+-])\s*(.*))?", base, re.DOTALL)
        if not found:
            return Address(None, constant(base, self._line, self._statement), coordinates)
        offset = self._offset(found)
        register = self._find(found[1])
        where = Register(register) if register is not None else Symbol(self._name_of(found[1]))
        return Address(where, offset, coordinates)
