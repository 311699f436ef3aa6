"""Owns which names stand for what in a body: registers, variables, labels, by scope.

It must not know statements. Names of inner scopes hide those of outer ones; every register of a
kernel has a name of its own. The body of a function that is called has names of its own too.
"""

from ptx.emulator.syntax import Kernel


class Names:
    """The names of one body of `kernel`; `suffix` tells one call of a function from another."""

    def __init__(self, kernel: Kernel, suffix: str = "") -> None:
        self._kernel, self._suffix = kernel, suffix
        self._registers: list[dict[str, str]] = []
        self._ranges: list[list[tuple[str, int, str]]] = []
        self._variables: list[dict[str, str]] = []
        self.open()

    def open(self) -> None:
        """A scope begins."""
        self._registers.append({})
        self._ranges.append([])
        self._variables.append({})

    def close(self) -> None:
        """The innermost scope ends."""
        self._registers.pop()
        self._ranges.pop()
        self._variables.pop()

    def register(self, name: str) -> str | None:
        """The unique name of a register that is visible here, or None."""
        for scope, ranges in zip(reversed(self._registers), reversed(self._ranges), strict=True):
            if name in scope:
                return scope[name]
            for stem, n_registers, type_name in ranges:
                tail = name[len(stem) :]
                if name.startswith(stem) and tail.isdigit() and int(tail) < n_registers:
                    return self._new_register(name, type_name, scope)
        return None

    def declare(self, name: str, type_name: str) -> str | None:
        """The unique name of a new register of this scope; None when the scope has it already."""
        if name in self._registers[-1]:
            return None
        return self._new_register(name, type_name, self._registers[-1])

    def declare_range(self, stem: str, n_registers: int, type_name: str) -> None:
        """Registers `stem0` and so on, made when they are first named."""
        self._ranges[-1].append((stem, n_registers, type_name))

    def _new_register(self, name: str, type_name: str, scope: dict[str, str]) -> str:
        unique = name
        while unique in self._kernel.registers:
            unique += "'"
        scope[name] = unique
        self._kernel.registers[unique] = type_name
        return unique

    def place(self, name: str, unique: str) -> None:
        """In this scope `name` is the variable `unique`."""
        self._variables[-1][name] = unique

    def variable(self, name: str) -> str:
        """The unique name of a variable that was placed here, else the name itself."""
        for scope in reversed(self._variables):
            if name in scope:
                return scope[name]
        return name

    def label(self, name: str) -> str:
        """The unique name of a label."""
        return name + self._suffix
