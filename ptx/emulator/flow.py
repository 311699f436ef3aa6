"""Owns which registers may be read before they are written on some path.

It must not know what instructions do, only which operands they write. Registers that no path reads
too early need no watching while the kernel runs. The analysis errs towards watching.
"""

from collections import deque

from ptx.emulator.syntax import (
    Address,
    Instruction,
    Kernel,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)

# First operands of these are read, or are addresses.
NO_RESULT = {
    "st", "red", "bra", "bar", "barrier", "membar", "fence", "exit", "ret", "prefetch", "stmatrix",
    "setmaxnreg", "cp", "nanosleep", "griddepcontrol", "trap", "discard",
}
# The first operand is read as well as written.
READS_RESULT = {"wgmma"}


def maybe_unwritten(kernel: Kernel) -> set[str]:
    """Names of registers that some path may read before writing."""
    masks = {name: 1 << at for at, name in enumerate(kernel.registers)}
    writes, reads = [], []
    for source in kernel.code:
        written, read = _used(source)
        writes.append(0 if source.guard else _mask(written, masks))
        reads.append(_mask(read, masks))
    # None: no path found yet. The first path in makes every instruction known once.
    before: list[int | None] = [None] * (len(kernel.code) + 1)
    before[0] = 0
    work = deque([0])
    while work:
        at = work.popleft()
        if at >= len(kernel.code):
            continue
        after = (before[at] or 0) | writes[at]
        for following in _following(kernel, at):
            old = before[following]
            merged = after if old is None else old & after
            if merged != old:
                before[following] = merged
                work.append(following)
    early = 0
    for at, read_mask in enumerate(reads):
        early |= read_mask & ~(before[at] or 0)
    return {name for name, mask in masks.items() if mask & early}


def _mask(names: set[str], masks: dict[str, int]) -> int:
    total = 0
    for name in names:
        total |= masks[name]
    return total


def _following(kernel: Kernel, at: int) -> list[int]:
    source = kernel.code[at]
    following = []
    if source.opcode == "bra" and isinstance(source.operands[0], Symbol):
        following.append(kernel.labels.get(source.operands[0].name, len(kernel.code)))
    if source.opcode not in ("bra", "exit", "ret") or source.guard:
        following.append(at + 1)
    return following


def _used(source: Instruction) -> tuple[set[str], set[str]]:
    """Registers written and read by an instruction."""
    written: set[str] = set()
    read: set[str] = set()
    if source.guard:
        read.add(source.guard.name)
    for at, operand in enumerate(source.operands):
        result = at == 0 and source.opcode not in NO_RESULT and not isinstance(operand, Address)
        if result:
            written |= _names(operand)
        if not result or source.opcode in READS_RESULT:
            read |= _names(operand)
    if source.opcode in ("bar", "barrier") and "red" in source.mods and source.operands:
        written |= _names(source.operands[0])
        read -= _names(source.operands[0])
    return written, read


def _names(operand: Operand | None) -> set[str]:
    if isinstance(operand, Register):
        return {operand.name}
    if isinstance(operand, Address):
        names = _names(operand.base)
        for item in operand.coordinates:
            names |= _names(item)
        return names
    if isinstance(operand, Vector):
        return set().union(*(_names(item) for item in operand.items))
    if isinstance(operand, Pair):
        return _names(operand.first) | _names(operand.second)
    return set()
