"""Owns reading PTX text into a Module: directives, headers of kernels and functions.

It must not know what instructions do; bodies are read in `body.py`. What is not in the subset is
refused with its line. Contract: the PTX ISA's syntax and directives.
"""

import re
from collections.abc import Iterator

from ptx.emulator.body import Body
from ptx.emulator.declarations import DECLARATION, N_BYTES, declared
from ptx.emulator.functions import HEADER as FUNCTION
from ptx.emulator.functions import NOWHERE, Function, read_function, remember
from ptx.emulator.syntax import Kernel, KernelParam, Module, Variable
from ptx.emulator.text import Text, refuse

ENTRY = re.compile(
    r"(?:\.(?:visible|weak)\s+)?\.entry\s+([\w$%]+)\s*(?:\((.*?)\))?\s*([^{;]*)\{", re.DOTALL
)
DIRECTIVE = re.compile(r"\.(version)\s+(\d+)\.(\d+)|\.(target)\s+(\w+)[^\n]*|\.address_size\s+64")
LIMITS = {"maxntid", "reqntid", "minnctapersm", "maxnreg", "reqnctapercluster", "explicitcluster"}


def parse(text: str) -> Module:
    """Read a module; EmulatorError of kind `subset` names line and statement."""
    return _Parser(Text(text)).module()


class _Parser:
    def __init__(self, text: Text) -> None:
        self._text = text
        self._functions: dict[str, Function] = {}
        self._entries: list[re.Match[str]] = []
        self._variables: list[Variable] = []
        self._version, self._target = (0, 0), ""

    def module(self) -> Module:
        at = 0
        while rest := re.compile(r"\s*(?=\S)").match(self._text.all, at):
            at = self._top(rest.end())
        if not self._version[0] or not self._target:
            raise refuse(1, "", "a module needs .version and .target")
        # Functions may be called before they are defined, so bodies come last.
        kernels: dict[str, Kernel] = {}
        for header in self._entries:
            kernel = self._entry(header)
            body = Body(self._text, kernel, self._functions)
            body.read(header.end(), self._text.closing(header.end()) - 1)
            kernels[kernel.name] = kernel
        self._check_functions()
        return Module(self._version, self._target, kernels, self._variables)

    def _top(self, at: int) -> int:
        """Read what stands at a place outside all bodies; the place behind it."""
        text, line = self._text.all, self._text.line(at)
        if entry := ENTRY.match(text, at):
            self._entries.append(entry)
            return self._text.closing(entry.end())
        if header := FUNCTION.match(text, at):
            function, end = read_function(self._text, header)
            remember(self._functions, function)
            return end
        if found := DIRECTIVE.match(text, at):
            if found[1]:
                self._version = int(found[2]), int(found[3])
            elif found[4]:
                self._target = found[5]
        elif found := re.compile(DECLARATION.pattern + r"[^;]*;").match(text, at):
            self._declare(found[0][:-1], line)
        else:
            shown = text[at:].split("\n", 1)[0]
            raise refuse(line, shown, "is outside what the emulator reads")
        return found.end()

    def _declare(self, text: str, line: int) -> None:
        def none(type_name: str, names: str) -> None:
            raise refuse(line, text, "registers are declared in bodies")

        for variable in declared(text, line, none):
            if variable.space in ("local", "param"):
                raise refuse(line, text, f".{variable.space} variables are declared in bodies")
            self._variables.append(variable)

    def _entry(self, header: re.Match[str]) -> Kernel:
        line = self._text.line(header.start())
        params = list(_params(header[2] or "", line))
        limits: dict[str, tuple[int, ...]] = {}
        for name, numbers in re.findall(r"\.(\w+)\s*([\d\s,]*)", header[3]):
            if name not in LIMITS:
                raise refuse(line, f".{name}", "is not a kernel directive known here")
            limits[name] = tuple(int(n) for n in re.findall(r"\d+", numbers))
        return Kernel(header[1], line, params, limits)

    def _check_functions(self) -> None:
        """Read every function once by itself, so that one that nobody calls is judged too."""
        for function in self._functions.values():
            if function.start != NOWHERE:
                alone = Kernel(function.name, function.line, [], {})
                Body(self._text, alone, self._functions).read_function(function)


def _params(text: str, line: int) -> Iterator[KernelParam]:
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
