"""Owns the headers of device functions: names, parameters, where a body lies in the text.

It must not know statements. Contract: the PTX ISA's .func and its parameter state space.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from ptx.emulator.declarations import N_BYTES
from ptx.emulator.errors import EmulatorError
from ptx.emulator.text import Text, refuse

HEADER = re.compile(
    r"(?:\.(?:visible|extern|weak)\s+)*\.func\s*(?:\(([^)]*)\)\s*)?([\w$%]+)\s*(?:\(([^)]*)\))?"
    r"\s*([{;])"
)
FORMAL = re.compile(
    r"\s*\.(reg|param)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%]+)\s*(?:\[(\d+)\])?\s*"
)
NOWHERE = -1
Refuse = Callable[[str], EmulatorError]


@dataclass(frozen=True)
class Formal:
    """A parameter or result: a register, or `n_bytes` of .param space."""

    name: str
    in_register: bool
    type: str
    n_bytes: int
    align: int

    @property
    def plain(self) -> str:
        """The type as moves, loads and stores have it."""
        return self.type if self.type == "pred" else f"b{8 * self.n_bytes}"


@dataclass(frozen=True)
class Function:
    """A function whose body lies between two places of the text; NOWHERE without one."""

    name: str
    line: int
    results: tuple[Formal, ...]
    params: tuple[Formal, ...]
    start: int = NOWHERE
    end: int = NOWHERE


def read_function(text: Text, header: re.Match[str]) -> tuple[Function, int]:
    """The function of a header, and the place behind it and its body."""
    name, line, has_body = header[2], text.line(header.start()), header[4] == "{"

    def wrong(why: str) -> EmulatorError:
        return refuse(line, f".func {name}", why)

    results, params = (_formals(header[at] or "", wrong) for at in (1, 3))
    if not has_body:
        return Function(name, line, results, params), header.end()
    end = text.closing(header.end())
    return Function(name, line, results, params, header.end(), end - 1), end


def remember(functions: dict[str, Function], function: Function) -> None:
    """Keep a function beside the others; a mere declaration gives way to the body."""
    old = functions.get(function.name)
    if old is None or old.start == NOWHERE:
        functions[function.name] = function
    elif function.start != NOWHERE:
        raise refuse(function.line, f".func {function.name}", "is a function already")


def _formals(text: str, wrong: Refuse) -> tuple[Formal, ...]:
    found = []
    for part in filter(str.strip, text.split(",")):
        match = FORMAL.fullmatch(part)
        digits = match[3].lstrip("busf") if match else ""
        if not match or (digits not in N_BYTES and match[3] != "pred"):
            raise wrong(f"{' '.join(part.split())} is not a parameter known here")
        width = N_BYTES.get(digits, 1)
        found.append(Formal(match[4], match[1] == "reg", match[3], width * int(match[5] or 1),
                            max(width, int(match[2] or 1))))
    return tuple(found)
