"""Owns the engine's typed refusals and the ABI status each one maps to.

Knows nothing of C: a status is an integer here, with the values that every version of the ABI
shares. A message names the thing, the value and the limit.
"""

from enum import IntEnum


class Status(IntEnum):
    """Outcome of a call, numbered as the serving ABI numbers it."""

    OK = 0
    ERROR = 1
    INVALID_ARGUMENT = 2
    UNSUPPORTED = 3
    BUFFER_TOO_SMALL = 4
    IO_ERROR = 5
    MODEL_ERROR = 6
    RUNTIME_ERROR = 7


class EngineError(Exception):
    """Base of every refusal the engine makes on purpose; `status` is what the caller sees."""

    status = Status.ERROR


class InvalidArgument(EngineError):
    """The caller passed a value outside the documented domain."""

    status = Status.INVALID_ARGUMENT


class Unsupported(EngineError):
    """The request is well formed, and this model or stage does not do it."""

    status = Status.UNSUPPORTED


class BufferTooSmall(EngineError):
    """The output does not fit; the needed count was reported and nothing changed."""

    status = Status.BUFFER_TOO_SMALL


class IoFailure(EngineError):
    """Writing an output file failed."""

    status = Status.IO_ERROR


class ModelError(EngineError):
    """A model file is missing, unreadable, or not a usable model."""

    status = Status.MODEL_ERROR


class RuntimeFailure(EngineError):
    """The request is valid but cannot run now: no lane, no room, no state."""

    status = Status.RUNTIME_ERROR
