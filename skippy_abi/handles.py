"""Owns the opaque pointers that C holds: numbers that are looked up and never dereferenced.

A handle is an address-like number that is given out once in the life of the process, so a stale,
freed, foreign, misaligned or other-kind pointer is simply not in the table, whoever lives at that
address now. The objects' own rules are in the engine.
"""

import itertools
import threading
from collections.abc import Iterable
from typing import Any, TypeVar

from engine.errors import InvalidArgument
from skippy_abi.cffi_module import ffi
from skippy_abi.fallback_front import FIRST_HANDLE

T = TypeVar("T")

# Aligned like an allocation.
STEP_BYTES = 16

_objects: dict[int, Any] = {}
_numbers = itertools.count(FIRST_HANDLE, STEP_BYTES)
_lock = threading.Lock()


def give(item: object, c_type: str) -> Any:
    """Enter an object and return its handle as a C pointer of `c_type`, e.g. "skippy_model"."""
    with _lock:
        number = next(_numbers)
        _objects[number] = item
    return ffi.cast(f"struct {c_type} *", number)


def number_of(handle: Any) -> int:
    """The handle as a number, 0 for NULL."""
    return int(ffi.cast("uintptr_t", handle))


def take(handle: Any, kind: type[T], name: str) -> T:
    """The object behind a handle; raises InvalidArgument for anything that is not a live `kind`."""
    number = number_of(handle)
    item = _objects.get(number)
    if isinstance(item, kind):
        return item
    raise InvalidArgument(f"{name}: {_why_not(number, item)}")


def remove(handle: Any, kind: type[T], name: str) -> T:
    """Take the object out of the table; of two concurrent frees only one gets it."""
    with _lock:
        item = take(handle, kind, name)
        del _objects[number_of(handle)]
    return item


def forget(items: Iterable[object]) -> None:
    """Drop the handles of objects that died with their owner."""
    dying = {id(item) for item in items}
    with _lock:
        for number in [n for n, item in _objects.items() if id(item) in dying]:
            del _objects[number]


def live() -> int:
    """How many handles are in the table."""
    return len(_objects)


def _why_not(number: int, item: object) -> str:
    if not number:
        return "NULL handle"
    if item is not None:
        return f"handle {number:#x} is a {type(item).__name__}"
    return f"handle {number:#x} is not live (freed, foreign or misaligned)"
