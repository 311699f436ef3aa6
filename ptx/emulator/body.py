"""Owns reading the body of a kernel into its record: statements, scopes, labels, calls.

It must not know what instructions do. Operands and literals are read in `operands.py`. Contract:
the PTX ISA's statements.
"""

import re
from dataclasses import replace

from ptx.emulator.calls import Calls
from ptx.emulator.declarations import DECLARATION, declared
from ptx.emulator.errors import EmulatorError
from ptx.emulator.functions import Function
from ptx.emulator.names import Names
from ptx.emulator.operands import OperandReader
from ptx.emulator.syntax import Address, Instruction, Kernel, Operand, Register, Symbol
from ptx.emulator.text import Text, refuse

TOKEN = re.compile(r'[{};]|[\w$%]+\s*:(?!:)|\.(?:loc|file)\s[^\n]*|"[^"]*"')
STATEMENT = re.compile(
    r"(?:@(!?)([\w$%]+)\s+)?([a-z]\w*)((?:(?:\.|::)\w+)*)\s*(.*)", re.DOTALL
)


class Body:
    """Reads bodies of `text` into `kernel`, with the functions that they call."""

    def __init__(self, text: Text, kernel: Kernel, functions: dict[str, Function]) -> None:
        self._text, self._kernel = text, kernel
        self._names = Names(kernel)
        self._calls = Calls(kernel, functions, self._read_called)

    def read(self, at: int, end: int) -> None:
        """Statements end with a semicolon; braces that start one open and close scopes."""
        text = self._text.all
        start, depth = at, 0
        for match in TOKEN.finditer(text, at, end):
            token = match[0]
            before = text[start : match.start()].strip()
            if token == ";" and not depth:
                if before:
                    self._statement(before, self._text.line(text.index(before[0], start)))
                start = match.end()
            elif token == "{" and (before or depth):
                depth += 1
            elif token == "}" and depth:
                depth -= 1
            elif token == "{":
                self._names.open()
                start = match.end()
            elif token == "}":
                self._names.close()
                start = match.end()
            elif token.endswith(":") and not before and not depth:
                self._label(token[:-1].strip(), self._text.line(match.start()))
                start = match.end()
            elif token.startswith((".loc", ".file")) and not before:
                start = match.end()
        if text[start:end].strip():
            raise self._refuse(self._text.line(start), text[start:end], "has no semicolon")

    def read_function(self, function: Function) -> None:
        """Read a function by itself, as if somebody called it."""
        results, arguments = self._calls.standing_in(function, self._names)
        call = Instruction(function.line, f".func {function.name}", None, "call", (), ())
        self._put(call, function.name, results, arguments)

    def _refuse(self, line: int, text: str, why: str) -> EmulatorError:
        return refuse(line, text, why, self._kernel.name)

    def _label(self, name: str, line: int) -> None:
        unique = self._names.label(name)
        if unique in self._kernel.labels:
            raise self._refuse(line, name, "is a label already")
        self._kernel.labels[unique] = len(self._kernel.code)

    def _statement(self, text: str, line: int) -> None:
        if text.startswith(".pragma"):
            return
        if DECLARATION.match(text):
            self._declare(text, line)
            return
        found = STATEMENT.fullmatch(text)
        if not found:
            raise self._refuse(line, text, "is not a statement known here")
        guard = None
        if found[2]:
            guard = Register(self._register(found[2], text, line), bool(found[1]))
        reader = OperandReader(
            self._names.register, self._names.variable, line, text, self._kernel.name
        )
        mods = tuple(part for part in re.sub(r"\s", "", found[4]).split(".") if part)
        source = Instruction(line, " ".join(text.split()), guard, found[3], mods, ())
        if found[3] == "call":
            self._put(source, *self._called(reader, found[5], source))
        else:
            self._kernel.code.append(
                self._in_place(replace(source, operands=reader.read(found[5])))
            )

    def _register(self, name: str, text: str, line: int) -> str:
        unique = self._names.register(name)
        if unique is None:
            raise self._refuse(line, text, f"{name} is not declared")
        return unique

    # Declarations

    def _declare(self, text: str, line: int) -> None:
        """Variables of a body; those of a function, and in .param space, belong to their scope."""
        def registers(type_name: str, names: str) -> None:
            self._registers(type_name, names, text, line)

        for variable in declared(text, line, registers, self._kernel.name):
            param = variable.space == "param"
            if param or (self._calls.inside and variable.space == "local"):
                unique = self._calls.variable(
                    variable.name, variable.n_bytes, variable.align, param
                )
                self._names.place(variable.name, unique)
            elif self._calls.inside:
                raise self._refuse(line, text, f"a function's own .{variable.space} variables are "
                                   "outside what the emulator reads")
            else:
                self._kernel.variables.append(variable)

    def _registers(self, type_name: str, names: str, text: str, line: int) -> None:
        for part in names.split(","):
            found = re.fullmatch(r"\s*([\w$%]+)(?:<(\d+)>)?\s*", part)
            if not found:
                raise self._refuse(line, text, "is not a register declaration known here")
            if found[2]:
                self._names.declare_range(found[1], int(found[2]), type_name)
            elif self._names.declare(found[1], type_name) is None:
                raise self._refuse(line, text, f"{found[1]} is declared already")

    # Functions

    def _called(
        self, reader: OperandReader, text: str, source: Instruction
    ) -> tuple[str, tuple[Operand, ...], tuple[Operand, ...]]:
        """Name, results and arguments of `call (results), name, (arguments)`."""
        parts = reader.split(text)
        results = parts.pop(0) if parts[0].startswith("(") else "()"
        name, *rest = parts or [""]
        if set(source.mods) - {"uni"} or name.startswith("(") or len(rest) > 1 or (
            rest and not rest[0].startswith("(")
        ):
            raise self._refuse(source.line, source.text, "is not a direct call")
        arguments = rest[0] if rest else "()"
        return name, reader.read(results[1:-1]), reader.read(arguments[1:-1])

    def _put(
        self, source: Instruction, name: str, results: tuple[Operand, ...],
        arguments: tuple[Operand, ...],
    ) -> None:
        def wrong(why: str) -> EmulatorError:
            return self._refuse(source.line, source.text, why)

        self._calls.put(source, name, results, arguments, wrong)

    def _read_called(self, function: Function, names: Names) -> None:
        outer, self._names = self._names, names
        self.read(function.start, function.end)
        self._names = outer

    def _in_place(self, source: Instruction) -> Instruction:
        """A statement with the names of its body: labels, parameters, where ret goes."""
        if source.opcode == "bra" and source.operands and isinstance(source.operands[0], Symbol):
            label = Symbol(self._names.label(source.operands[0].name))
            return replace(source, operands=(label, *source.operands[1:]))
        if source.opcode == "ret" and self._calls.inside:
            return replace(source, opcode="bra", mods=(), operands=(self._calls.end,))
        if source.opcode not in ("ld", "st") or "param" not in source.mods:
            return source
        for operand in source.operands:
            base = operand.base if isinstance(operand, Address) else None
            if isinstance(base, Symbol) and self._calls.is_param(base.name):
                mods = tuple("local" if word == "param" else word for word in source.mods)
                return replace(source, mods=mods)
        if self._calls.inside:
            raise self._refuse(source.line, source.text, "is no parameter of this function")
        return source
