"""Owns putting the body of a device function where it is called.

It must not know what instructions do. The statements of a call have names of their own, so that
lines in messages are those of the function; parameters in .param space are local variables of the
thread. Functions that call themselves, or have no body in the module, are refused. Contract: the
PTX ISA's call and ret.
"""

from collections.abc import Callable

from ptx.emulator.functions import NOWHERE, Formal, Function, Refuse
from ptx.emulator.names import Names
from ptx.emulator.syntax import Address, Instruction, Kernel, Operand, Register, Symbol, Variable

MAX_STATEMENTS = 1 << 16
Operands = tuple[Operand, ...]


class Calls:
    """The calls of one kernel; `read` reads the statements of a function with given names."""

    def __init__(
        self, kernel: Kernel, functions: dict[str, Function],
        read: Callable[[Function, Names], None],
    ) -> None:
        self._kernel, self._functions, self._read = kernel, functions, read
        self._stack: list[tuple[Function, str]] = []
        self._n_calls = 0
        # Variables that stand for .param space, with their bytes.
        self._params: dict[str, int] = {}

    @property
    def inside(self) -> bool:
        """Whether the statements of a function are being read."""
        return bool(self._stack)

    @property
    def end(self) -> Symbol:
        """Where a `ret` of the function that is being read goes."""
        return Symbol(self._stack[-1][1])

    def variable(self, name: str, n_bytes: int, align: int, param: bool = True) -> str:
        """A new local variable, perhaps for a piece of .param space; its unique name."""
        unique = f"{name}#{len(self._kernel.variables)}"
        self._kernel.variables.append(Variable(unique, "local", "b8", n_bytes, align))
        if param:
            self._params[unique] = n_bytes
        return unique

    def is_param(self, name: str) -> bool:
        """Whether a unique name is of a piece of .param space."""
        return name in self._params

    def standing_in(self, function: Function, names: Names) -> tuple[Operands, Operands]:
        """Results and arguments of a call that nobody made, to read a function by itself."""
        def stand_in(formal: Formal) -> Operand:
            if formal.in_register:
                return Register(names.declare(formal.name, formal.type) or formal.name)
            return Symbol(self.variable(formal.name, formal.n_bytes, formal.align))

        results, params = (
            tuple(map(stand_in, formals)) for formals in (function.results, function.params)
        )
        return results, params

    def put(
        self, call: Instruction, name: str, results: Operands, arguments: Operands, wrong: Refuse
    ) -> None:
        """The statements of a call."""
        function = self._functions.get(name)
        if function is None or function.start == NOWHERE:
            raise wrong(f"{name} is not a function with a body in this module")
        if any(function is other for other, _ in self._stack):
            raise wrong(f"{name} calls itself")
        if (len(results), len(arguments)) != (len(function.results), len(function.params)):
            raise wrong(f"{name} has {len(function.results)} results and {len(function.params)} "
                        "parameters")
        self._n_calls += 1
        names = Names(self._kernel, f"@{self._n_calls}")
        end, after = names.label(f"end of {name}"), names.label(f"after {name}")
        if call.guard is not None:
            others = Register(call.guard.name, not call.guard.negated)
            self._emit(call, "bra", (), (Symbol(after),), others)
        for formal, given in zip(function.params, arguments, strict=True):
            self._bind(call, names, formal, given, True, wrong)
        places = [
            self._bind(call, names, formal, given, False, wrong)
            for formal, given in zip(function.results, results, strict=True)
        ]
        self._stack.append((function, end))
        self._read(function, names)
        self._stack.pop()
        self._kernel.labels[end] = len(self._kernel.code)
        if len(self._kernel.code) > MAX_STATEMENTS:
            raise wrong(f"more than {MAX_STATEMENTS} statements with the functions that it calls")
        for formal, given, place in zip(function.results, results, places, strict=True):
            if isinstance(place, Register):
                self._emit(call, "mov", (formal.plain,), (given, place))
            elif isinstance(given, Register):
                self._emit(call, "ld", ("local", formal.plain), (given, Address(place, 0)))
        self._kernel.labels[after] = len(self._kernel.code)

    def _bind(
        self, call: Instruction, names: Names, formal: Formal, given: Operand, passes: bool,
        wrong: Refuse,
    ) -> Register | Symbol:
        """Let a formal parameter be what is given, and hand the value over when it `passes`."""
        if formal.in_register:
            if isinstance(given, Symbol):
                raise wrong(f"{formal.name} is a register, given {given.name}")
            register = Register(names.declare(formal.name, formal.type) or formal.name)
            if passes:
                self._emit(call, "mov", (formal.plain,), (register, given))
            return register
        if isinstance(given, Symbol):
            n_bytes = self._params.get(given.name)
            if n_bytes is None:
                raise wrong(f"{given.name} is no variable in .param space")
            if n_bytes != formal.n_bytes:
                raise wrong(f"{formal.name} has {formal.n_bytes} bytes, given {n_bytes}")
            names.place(formal.name, given.name)
            return given
        place = Symbol(self.variable(formal.name, formal.n_bytes, formal.align))
        names.place(formal.name, place.name)
        if passes:
            self._emit(call, "st", ("local", formal.plain), (Address(place, 0), given))
        return place

    def _emit(
        self, call: Instruction, opcode: str, mods: tuple[str, ...], operands: Operands,
        guard: Register | None = None,
    ) -> None:
        """A statement of the call itself, shown as it stands in the text."""
        self._kernel.code.append(
            Instruction(call.line, call.text, guard, opcode, mods, operands)
        )
