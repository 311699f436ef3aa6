"""Owns which Python function answers which export, and the answer of one that has none.

An unregistered function would answer 0, which the ABI reads as success, so nothing is answered
until `finish` has filled every gap. Knows nothing of errors' texts: `boundary` sits on top.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from engine.errors import InvalidArgument, Status
from skippy_abi import table
from skippy_abi.cffi_module import ffi, lib

Function = TypeVar("Function", bound=Callable[..., Any])

_ABI = table.load(
    (lib.SKIPPY_ABI_VERSION_MAJOR, lib.SKIPPY_ABI_VERSION_MINOR, lib.SKIPPY_ABI_VERSION_PATCH)
)
_SYMBOLS = {symbol.name: symbol for symbol in _ABI.served}
_NEUTRAL = {"": None, "NULL": ffi.NULL, "false": False}
_registered: set[str] = set()


def served() -> frozenset[str]:
    """The names of the exports that Python answers."""
    return frozenset(_SYMBOLS)


def failure(name: str) -> Any:
    """What the export `name` returns when it cannot answer: ERROR, or its neutral value."""
    symbol = _SYMBOLS[name]
    if symbol.is_status:
        return int(Status.ERROR)
    return _NEUTRAL[symbol.neutral] if symbol.neutral in _NEUTRAL else int(symbol.neutral)


def register(name: str) -> Callable[[Function], Function]:
    """Serve a function as the export `name`: C arguments in order, the C result returned.

    Raises InvalidArgument for a name that is not served, or that has a function already.
    """
    if name not in _SYMBOLS or name in _registered:
        raise InvalidArgument(f"{name} is {'taken' if name in _SYMBOLS else 'not a served export'}")

    def attach(function: Function) -> Function:
        ffi.def_extern(name=f"py_{name}", error=failure(name))(function)
        _registered.add(name)
        return function

    return attach


def _refuse(name: str) -> None:
    symbol = _SYMBOLS[name]
    text = f"{name} is not implemented by this runtime".encode()
    position = next((i for i, p in enumerate(symbol.params) if p.name == "out_error"), None)
    if symbol.leaves_out_error:
        position = None

    def refuse(*arguments: Any) -> Any:
        if not symbol.is_status:
            return failure(name)
        out_error = ffi.NULL if position is None else arguments[position]
        return lib.ms_fail(out_error, int(Status.UNSUPPORTED), text, len(text))

    register(name)(refuse)


def finish() -> tuple[str, ...]:
    """Opens the exports for calls; the last statement of the boot module.

    Every served export without a function answers UNSUPPORTED from now on; their names return.
    """
    missing = tuple(name for name in _SYMBOLS if name not in _registered)
    for name in missing:
        _refuse(name)
    ffi.def_extern(name="py_alive")(lambda: 1)
    return missing
