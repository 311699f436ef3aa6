"""Owns the traffic with memory that C passes in: checked reads, checked writes, the sizing rule.

No pointer from C is trusted: every byte goes through `lib.ms_read` and `lib.ms_write`, which copy
with the kernel's help and answer a bad address instead of faulting. A pointer whose count or
capacity is 0 is never touched, NULL or not: Rust passes dangling pointers for empty slices.
"""

import sys
from typing import Any

from engine.errors import BufferTooSmall, InvalidArgument
from skippy_abi.cffi_module import ffi, lib

INT32_MAX = 2**31 - 1
SIZE_BYTES = ffi.sizeof("size_t")
# Longer than any prompt a context can hold; keeps a missing terminator from walking the heap.
MAX_TEXT_BYTES = 256 << 20
MAX_READ_BYTES = 1 << 40
# Not worth a question before the copy itself.
SMALL_BYTES = 1 << 16
# A hole in the middle of an absurd range is met after one piece.
PIECE_BYTES = 64 << 20


def read_bytes(pointer: Any, n_bytes: int, name: str) -> bytearray:
    """`n_bytes` bytes from C memory."""
    if n_bytes == 0:
        return bytearray()
    if pointer == ffi.NULL:
        raise InvalidArgument(f"{name}: NULL with {n_bytes} bytes")
    if n_bytes <= PIECE_BYTES and (n_bytes <= SMALL_BYTES or lib.ms_readable(pointer, n_bytes)):
        data = bytearray(n_bytes)
        if lib.ms_read(ffi.from_buffer(data), pointer, n_bytes):
            return data
    elif n_bytes <= MAX_READ_BYTES and lib.ms_readable(pointer, n_bytes):
        return _read_pieces(pointer, n_bytes, name)
    raise InvalidArgument(f"{name}: {n_bytes} bytes at {_address(pointer)} are not readable")


def _read_pieces(pointer: Any, n_bytes: int, name: str) -> bytearray:
    """A long range, so that a hole in it is met before memory for all of it is taken."""
    data = bytearray()
    while len(data) < n_bytes:
        source = ffi.cast("char *", pointer) + len(data)
        data += read_bytes(source, min(PIECE_BYTES, n_bytes - len(data)), name)
    return data


def read_array(pointer: Any, count: int, item: str, name: str) -> Any:
    """`count` items of C type `item` as an owned C array; count 0 gives an empty one."""
    _check_count(count, name)
    if count == 0:
        return ffi.new(f"{item}[]", 0)
    data = read_bytes(pointer, count * ffi.sizeof(item), name)
    return ffi.from_buffer(f"{item}[]", data)


def read_tokens(pointer: Any, count: int, name: str = "token_ids") -> list[int]:
    """`count` token ids."""
    return list(read_array(pointer, count, "int32_t", name))


def read_struct(pointer: Any, c_type: str, name: str) -> Any:
    """An owned copy of a struct, or None for NULL."""
    if pointer == ffi.NULL:
        return None
    data = read_bytes(pointer, ffi.sizeof(f"struct {c_type}"), name)
    return ffi.from_buffer(f"struct {c_type} *", data)


def read_c_string(pointer: Any, name: str) -> bytes:
    """The bytes before the terminator; raises InvalidArgument for NULL and for bad memory."""
    if pointer == ffi.NULL:
        raise InvalidArgument(f"{name}: NULL")
    length = int(lib.ms_strlen(pointer, MAX_TEXT_BYTES))
    if length < 0:
        raise InvalidArgument(
            f"{name}: no readable text of up to {MAX_TEXT_BYTES} bytes at {_address(pointer)}"
        )
    return bytes(read_bytes(pointer, length, name))


def read_text(pointer: Any, name: str) -> str:
    """UTF-8 text; raises InvalidArgument naming the first bad byte."""
    raw = read_c_string(pointer, name)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{name}: byte {error.start} of {len(raw)} is not valid UTF-8"
        ) from None


def read_optional_text(pointer: Any, name: str) -> str | None:
    """UTF-8 text, or None for NULL."""
    return None if pointer == ffi.NULL else read_text(pointer, name)


def require_out(pointer: Any, n_bytes: int, name: str) -> None:
    """Make sure that an output can be written before anything is done for it."""
    if pointer == ffi.NULL:
        raise InvalidArgument(f"{name}: NULL")
    check_out(pointer, n_bytes, name)


def check_out(pointer: Any, n_bytes: int, name: str) -> None:
    """The same for an optional output: NULL is fine."""
    if pointer != ffi.NULL and n_bytes and not lib.ms_writable(pointer, n_bytes):
        raise InvalidArgument(f"{name}: {n_bytes} bytes at {_address(pointer)} are not writable")


def write_bytes(pointer: Any, data: bytes | bytearray | memoryview, name: str) -> None:
    """Copy bytes out; NULL takes nothing."""
    if pointer == ffi.NULL or not len(data):
        return
    if not lib.ms_write(pointer, ffi.from_buffer(data), len(data)):
        raise InvalidArgument(f"{name}: {len(data)} bytes at {_address(pointer)} are not writable")


def write_required(pointer: Any, data: bytes, name: str) -> None:
    """Copy bytes out to a place that must exist, at the end of a call that changed nothing."""
    if pointer == ffi.NULL:
        raise InvalidArgument(f"{name}: NULL")
    write_bytes(pointer, data, name)


def write_value(pointer: Any, c_type: str, value: Any, name: str) -> None:
    """Store one scalar or pointer; NULL takes nothing."""
    write_bytes(pointer, bytes(ffi.buffer(ffi.new(f"{c_type} *", value))), name)


def write_struct(pointer: Any, value: Any, name: str) -> None:
    """Store an owned struct, given as `ffi.new("struct x *")`; NULL takes nothing."""
    write_bytes(pointer, bytes(ffi.buffer(value)), name)


def write_tokens(pointer: Any, tokens: list[int], name: str) -> None:
    """Store token ids."""
    write_bytes(pointer, bytes(ffi.buffer(ffi.new("int32_t[]", tokens))), name)


def check_capacity(capacity: int, name: str) -> None:
    """Text calls refuse capacities that no int32 length can have."""
    if capacity > INT32_MAX:
        raise InvalidArgument(f"{name}: capacity {capacity} above {INT32_MAX}")


def fits(counter: Any, needed: int, pointer: Any, capacity: int, name: str) -> None:
    """Report the size needed; raise BufferTooSmall when it is above the capacity, and
    InvalidArgument when there is room but no buffer. Nothing is written besides the counter."""
    write_required(counter, needed.to_bytes(SIZE_BYTES, sys.byteorder), f"{name} counter")
    if needed > capacity:
        raise BufferTooSmall(f"{name}: {needed} needed, capacity {capacity}")
    if needed and pointer == ffi.NULL:
        raise InvalidArgument(f"{name}: NULL with capacity {capacity}")


def _check_count(count: int, name: str) -> None:
    if count > INT32_MAX:
        raise InvalidArgument(f"{name}: count {count} above {INT32_MAX}")


def _address(pointer: Any) -> str:
    return hex(int(ffi.cast("uintptr_t", pointer)))
