"""Owns the way out of Python: every exported function returns a status, whatever happened inside.

`exported` is the only broad `except` of the project. A refusal that the engine made on purpose
carries its own status and message; anything else is our defect, goes to the log with its
traceback, and reaches the caller as ERROR without one. The C front has already cleared the out
pointers and answers for an interpreter that did not start (`skippy_abi/startup.py`).
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

from engine.errors import EngineError, RuntimeFailure, Status
from skippy_abi.cffi_module import lib
from skippy_abi.registry import register

log = logging.getLogger("mesh_specialize.abi")
Function = Callable[..., Any]


def exported(function: Function) -> Function:
    """Serve `function` as the C symbol of its name; its last parameter is `out_error`."""

    @functools.wraps(function)
    def call(*args: Any) -> int:
        status, message = _outcome(function, args)
        if status is Status.OK:
            return 0
        text = message.encode("utf-8", "replace").replace(b"\0", b"\\0")
        return int(lib.ms_fail(args[-1], int(status), text, len(text)))

    return register(function.__name__)(call)


def exported_without_error(function: Function) -> Function:
    """Serve a function whose status is all there is: `out_error` is never touched."""

    @functools.wraps(function)
    def call(*args: Any) -> int:
        return int(_outcome(function, args)[0])

    return register(function.__name__)(call)


def exported_value(default: object) -> Callable[[Function], Function]:
    """Serve a function that returns a value and no status; a failure answers `default`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            kept: list[Any] = []

            def keep(*inner: Any) -> None:
                kept.append(function(*inner))

            status, _ = _outcome(keep, args, function.__name__)
            return kept[0] if status is Status.OK else default

        return register(function.__name__)(call)

    return decorate


def _outcome(function: Function, args: Any, name: str | None = None) -> tuple[Status, str]:
    """Run it; the status and message that the caller will see."""
    called = name or function.__name__
    try:
        function(*args)
    except Exception as error:
        status, message = answer_to(error)
        if status is Status.ERROR:
            log.exception("internal error in %s", called)
        return status, message or f"{called}: internal error; the log has the details"
    return Status.OK, ""


def answer_to(error: BaseException) -> tuple[Status, str]:
    """What a caller is told of an error; of a defect of ours, nothing but that it is one."""
    if isinstance(error, EngineError):
        return error.status, str(error)
    if isinstance(error, MemoryError):
        return RuntimeFailure.status, "out of host memory"
    return Status.ERROR, ""
