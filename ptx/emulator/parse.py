"""Owns reading PTX text into a Module: directives, declarations, kernels.

It must not know what instructions do. Operands and literals are read in `operands.py`. What is not
in the subset is refused with its line. Contract: the PTX ISA's syntax and directives.
It is long because the statement grammar is one class.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator

from ptx.emulator.errors import EmulatorError
from ptx.emulator.operands import OperandReader, constant, initial_bytes
from ptx.emulator.syntax import Instruction, Kernel, KernelParam, Module, Register, Variable

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
HEADER = re.compile(
    r"(?:\.(?:visible|weak)\s+)?\.entry\s+([\w$%]+)\s*(?:\((.*?)\))?\s*([^{;]*)\{", re.DOTALL
)
N_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
LIMITS = {"maxntid", "reqntid", "minnctapersm", "maxnreg", "reqnctapercluster", "explicitcluster"}
SPACES = ("shared", "local", "const", "global")
DECLARATION = re.compile(r"(?:\.(?:visible|extern|weak)\s+)*\.(reg|shared|local|const|global)\b")


def parse(text: str) -> Module:
    """Read a module; EmulatorError of kind `subset` names line and statement."""
    return _Parser(text).module()


def refuse(line: int, text: str, why: str, kernel: str | None = None) -> EmulatorError:
    """The error for text outside the subset."""
    shown = " ".join(text.split())
    return EmulatorError("subset", why, line=line, text=shown[:120], kernel=kernel)


class _Parser:
    def __init__(self, text: str) -> None:
        # Line numbers survive because a comment leaves its line breaks behind.
        self._text = COMMENT.sub(lambda match: "\n" * match[0].count("\n") or " ", text)
        self._breaks = [match.start() for match in re.finditer("\n", self._text)]
        self._kernel: Kernel | None = None
        self._scopes: list[dict[str, str]] = []
        self._n_scopes = 0
        self._ranges: list[list[tuple[str, int, str]]] = []

    def module(self) -> Module:
        version, target = (0, 0), ""
        kernels: dict[str, Kernel] = {}
        variables: list[Variable] = []
        at = 0
        while rest := re.compile(r"\s*(?=\S)").match(self._text, at):
            at = rest.end()
            line = self._line(at)
            header = HEADER.match(self._text, at)
            if header:
                end = self._closing(header.end())
                kernel = self._entry(header, line)
                self._body(header.end(), end - 1)
                kernels[kernel.name] = kernel
                at = end
                continue
            if found := re.compile(r"\.version\s+(\d+)\.(\d+)").match(self._text, at):
                version = int(found[1]), int(found[2])
            elif found := re.compile(r"\.target\s+(\w+)[^\n]*").match(self._text, at):
                target = found[1]
            elif found := re.compile(r"\.address_size\s+64").match(self._text, at):
                pass
            elif found := re.compile(DECLARATION.pattern + r"[^;]*;").match(self._text, at):
                variables += list(self._declared(found[0][:-1], line))
            else:
                shown = self._text[at:].split("\n", 1)[0]
                raise refuse(line, shown, "is outside what the emulator reads")
            at = found.end()
        if not version[0] or not target:
            raise refuse(1, "", "a module needs .version and .target")
        return Module(version, target, kernels, variables)

    def _line(self, at: int) -> int:
        return bisect_left(self._breaks, at) + 1

    def _closing(self, at: int) -> int:
        depth = 1
        for match in re.compile(r"[{}]").finditer(self._text, at):
            depth += 1 if match[0] == "{" else -1
            if not depth:
                return match.end()
        line = self._line(at)
        raise refuse(line, "", "the body that starts here has no end")

    def _entry(self, header: re.Match[str], line: int) -> Kernel:
        params = list(self._params(header[2] or "", line))
        limits: dict[str, tuple[int, ...]] = {}
        for name, numbers in re.findall(r"\.(\w+)\s*([\d\s,]*)", header[3]):
            if name not in LIMITS:
                raise refuse(line, f".{name}", "is not a kernel directive known here")
            limits[name] = tuple(int(n) for n in re.findall(r"\d+", numbers))
        self._kernel = Kernel(header[1], line, params, limits)
        self._scopes, self._ranges, self._n_scopes = [{}], [[]], 0
        return self._kernel

    def _params(self, text: str, line: int) -> Iterator[KernelParam]:
        offset = 0
        for part in filter(str.strip, text.split(",")):
            found = re.fullmatch(
                r"\s*\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)(?:\s+\.ptr(?:\s+\.\w+)?"
                r"(?:\s+\.align\s+\d+)?)?\s+([\w$%]+)(?:\s*\[(\d+)\])?\s*", part,
            )
            if not found or found[2][1:] not in N_BYTES:
                raise refuse(line, part, "is not a parameter known here")
            width = N_BYTES[found[2][1:]]
            align = max(width, int(found[1] or 1))
            offset = -(-offset // align) * align
            n_bytes = width * int(found[4] or 1)
            yield KernelParam(found[3], found[2], n_bytes, offset)
            offset += n_bytes

    def _body(self, at: int, end: int) -> None:
        """Statements end with a semicolon; braces that start one open and close scopes."""
        start, depth = at, 0
        for match in re.compile(r'[{};]|[\w$%]+\s*:(?!:)|\.(?:loc|file)\s[^\n]*|"[^"]*"').finditer(
            self._text, at, end
        ):
            token = match[0]
            before = self._text[start : match.start()].strip()
            line = self._line(match.start())
            if token == ";" and not depth:
                if before:
                    self._statement(before, self._line(self._text.index(before[0], start)))
                start = match.end()
            elif token == "{" and (before or depth):
                depth += 1
            elif token == "}" and depth:
                depth -= 1
            elif token == "{":
                self._scopes.append({})
                self._ranges.append([])
                self._n_scopes += 1
                start = match.end()
            elif token == "}":
                self._scopes.pop()
                self._ranges.pop()
                start = match.end()
            elif token.endswith(":") and not before and not depth:
                self._label(token[:-1].strip(), line)
                start = match.end()
            elif token.startswith((".loc", ".file")) and not before:
                start = match.end()
        if self._text[start:end].strip():
            line = self._line(start)
            raise refuse(line, self._text[start:end], "has no semicolon", self._name())

    def _name(self) -> str | None:
        return self._kernel.name if self._kernel else None

    def _label(self, name: str, line: int) -> None:
        assert self._kernel is not None
        if name in self._kernel.labels:
            raise refuse(line, name, "is a label already", self._kernel.name)
        self._kernel.labels[name] = len(self._kernel.code)

    def _statement(self, text: str, line: int) -> None:
        kernel = self._kernel
        assert kernel is not None
        if text.startswith(".pragma"):
            return
        if DECLARATION.match(text):
            kernel.variables += self._declared(text, line)
            return
        found = re.fullmatch(r"(?:@(!?)([\w$%]+)\s+)?([a-z]\w*)((?:(?:\.|::)\w+)*)\s*(.*)", text,
                             re.DOTALL)
        if not found:
            raise refuse(line, text, "is not a statement known here", kernel.name)
        guard = None
        if found[2]:
            guard = Register(self._register(found[2], text, line), bool(found[1]))
        reader = OperandReader(self._find, line, text, kernel.name)
        mods = tuple(part for part in re.sub(r"\s", "", found[4]).split(".") if part)
        kernel.code.append(
            Instruction(line, " ".join(text.split()), guard, found[3], mods, reader.read(found[5]))
        )

    def _register(self, name: str, text: str, line: int) -> str:
        unique = self._find(name)
        if unique is None:
            raise refuse(line, text, f"{name} is not declared", self._name())
        return unique

    def _find(self, name: str) -> str | None:
        """The unique name of a register that is visible here, or None."""
        assert self._kernel is not None
        for scope, ranges in zip(reversed(self._scopes), reversed(self._ranges), strict=True):
            if name in scope:
                return scope[name]
            for stem, n_registers, type_name in ranges:
                tail = name[len(stem) :]
                if name.startswith(stem) and tail.isdigit() and int(tail) < n_registers:
                    return self._declare_register(name, type_name, scope)
        return None

    def _declare_register(self, name: str, type_name: str, scope: dict[str, str]) -> str:
        assert self._kernel is not None
        unique = name
        while unique in self._kernel.registers:
            unique += "'"
        scope[name] = unique
        self._kernel.registers[unique] = type_name
        return unique

    def _declared(self, text: str, line: int) -> Iterator[Variable]:
        space, rest = re.fullmatch(  # type: ignore[union-attr]
            r"(?:\.(?:visible|extern|weak)\s+)*\.(\w+)\s+(.*)", text, re.DOTALL
        ).groups()
        found = re.fullmatch(r"(?:\.align\s+(\d+)\s+)?(?:\.v([24])\s+)?\.(\w+)\s+(.*)", rest,
                             re.DOTALL)
        if not found or (found[3] != "pred" and found[3].lstrip("busf")[:3] not in N_BYTES):
            raise refuse(line, text, "is not a declaration known here", self._name())
        if space == "reg":
            self._registers(found[3], found[4], text, line)
            return
        width = N_BYTES[found[3].lstrip("busf")] * int(found[2] or 1)
        for part in re.split(r",(?![^{]*\})", found[4]):
            yield self._variable(space, found[3], width, int(found[1] or width), part, line)

    def _registers(self, type_name: str, names: str, text: str, line: int) -> None:
        for part in names.split(","):
            found = re.fullmatch(r"\s*([\w$%]+)(?:<(\d+)>)?\s*", part)
            if not found or self._kernel is None:
                raise refuse(line, text, "is not a register declaration known here", self._name())
            if found[2]:
                self._ranges[-1].append((found[1], int(found[2]), type_name))
            elif found[1] in self._scopes[-1]:
                raise refuse(line, text, f"{found[1]} is declared already", self._name())
            else:
                self._declare_register(found[1], type_name, self._scopes[-1])

    def _variable(
        self, space: str, type_name: str, width: int, align: int, text: str, line: int
    ) -> Variable:
        found = re.fullmatch(
            r"\s*([\w$%]+)\s*((?:\[[^\]]*\]\s*)*)(?:=\s*(.*?))?\s*", text, re.DOTALL
        )
        if not found:
            raise refuse(line, text, "is not a variable known here", self._name())
        lengths = [part.strip() for part in re.findall(r"\[([^\]]*)\]", found[2])]
        initial = initial_bytes(found[3], type_name, line, text) if found[3] else None
        if lengths == [""] and initial is None:
            return Variable(found[1], space, type_name, 0, align, None, dynamic=True)
        n_bytes = width
        for length in lengths:
            n_bytes *= constant(length, line, text) if length else len(initial or b"") // width
        return Variable(found[1], space, type_name, n_bytes, align, initial)
