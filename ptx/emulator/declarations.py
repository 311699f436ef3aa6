"""Owns reading declarations of registers and variables, in a module and in a body.

It must not know instructions or scopes. Contract: the PTX ISA's state spaces and variables.
"""

import re
from collections.abc import Callable, Iterator

from ptx.emulator.operands import constant, initial_bytes
from ptx.emulator.syntax import Variable
from ptx.emulator.text import refuse

N_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
DECLARATION = re.compile(
    r"(?:\.(?:visible|extern|weak)\s+)*\.(reg|shared|local|const|global|param)\b"
)
# Takes the type and the names of registers.
Registers = Callable[[str, str], None]


def declared(
    text: str, line: int, registers: Registers, kernel: str | None = None
) -> Iterator[Variable]:
    """The variables of a declaration; registers are handed on."""
    space, rest = re.fullmatch(  # type: ignore[union-attr]
        r"(?:\.(?:visible|extern|weak)\s+)*\.(\w+)\s+(.*)", text, re.DOTALL
    ).groups()
    found = re.fullmatch(r"(?:\.align\s+(\d+)\s+)?(?:\.v([24])\s+)?\.(\w+)\s+(.*)", rest,
                         re.DOTALL)
    if not found or (found[3] != "pred" and found[3].lstrip("busf")[:3] not in N_BYTES):
        raise refuse(line, text, "is not a declaration known here", kernel)
    if space == "reg":
        registers(found[3], found[4])
        return
    width = N_BYTES[found[3].lstrip("busf")] * int(found[2] or 1)
    for part in re.split(r",(?![^{]*\})", found[4]):
        yield _variable(space, found[3], width, int(found[1] or width), part, line, kernel)


def _variable(
    space: str, type_name: str, width: int, align: int, text: str, line: int, kernel: str | None
) -> Variable:
    found = re.fullmatch(
        r"\s*([\w$%]+)\s*((?:\[[^\]]*\]\s*)*)(?:=\s*(.*?))?\s*", text, re.DOTALL
    )
    if not found:
        raise refuse(line, text, "is not a variable known here", kernel)
    lengths = [part.strip() for part in re.findall(r"\[([^\]]*)\]", found[2])]
    initial = initial_bytes(found[3], type_name, line, text) if found[3] else None
    if lengths == [""] and initial is None:
        return Variable(found[1], space, type_name, 0, align, None, dynamic=True)
    n_bytes = width
    for length in lengths:
        n_bytes *= constant(length, line, text) if length else len(initial or b"") // width
    return Variable(found[1], space, type_name, n_bytes, align, initial)
