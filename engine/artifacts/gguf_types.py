"""Owns the typed metadata value of a GGUF file, and the limits that reader and writer share.

Knows nothing of files. A value is kept as the exact bytes that the file holds after the type id, so
that a copy loses nothing; Python objects are made when somebody asks.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from engine.errors import InvalidArgument, ModelError

MAGIC = b"GGUF"
VERSION = 3
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

# Far above any real file, and low enough that a hostile one costs less than a second and 64 MiB.
MAX_ALIGNMENT = 1 << 20
MAX_PAIRS = 16_384
MAX_TENSORS = 32_768
MAX_ARRAY_STRINGS = 1 << 21
MAX_NESTED_ARRAYS = 1 << 16
MAX_ARRAY_DEPTH = 8
MAX_KEY_BYTES = 1024
MAX_NAME_BYTES = 256
MAX_DIMS = 4
MAX_ELEMENTS = 2**63 - 1


class ValueType(IntEnum):
    """Type ids of metadata values, as the file numbers them."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# struct codes of the types whose values all take the same number of bytes
SCALAR_CODES: dict[ValueType, str] = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<?",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}
SCALAR_BYTES = {kind: struct.calcsize(code) for kind, code in SCALAR_CODES.items()}

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
ARRAY_HEAD = struct.Struct("<IQ")

# What one array element takes at the least: a string its length, an array its type and count.
MIN_ITEM_BYTES = {**SCALAR_BYTES, ValueType.STRING: U64.size, ValueType.ARRAY: ARRAY_HEAD.size}

Encoded = bytes | memoryview


@dataclass(frozen=True, slots=True)
class GgufValue:
    """One metadata value: its type, and its bytes exactly as a file holds them.

    Make one with `of` or `array`; the reader makes them as views of the mapped file. Equal means
    the same type and the same bytes, so a NaN equals itself.
    """

    type: ValueType
    payload: Encoded

    @classmethod
    def of(cls, kind: ValueType, value: Any) -> "GgufValue":
        """A scalar, or a string from str or bytes. InvalidArgument when it does not fit."""
        return cls(kind, _encode(kind, value))

    @classmethod
    def array(cls, element_type: ValueType, values: Sequence[Any]) -> "GgufValue":
        """An array; the elements of an array of arrays are array values themselves."""
        head = ARRAY_HEAD.pack(element_type, len(values))
        made = cls(ValueType.ARRAY, head + b"".join(_encode(element_type, v) for v in values))
        if element_type == ValueType.ARRAY and _depth(made.value) > MAX_ARRAY_DEPTH:
            raise InvalidArgument(f"array nested deeper than {MAX_ARRAY_DEPTH}")
        return made

    @property
    def element_type(self) -> ValueType | None:
        """Type of an array's elements; None for what is not an array."""
        if self.type != ValueType.ARRAY:
            return None
        return ValueType(ARRAY_HEAD.unpack_from(self.payload)[0])

    @property
    def value(self) -> Any:
        """int, float, bool, bytes (a string, undecoded), or a list of these, nested as stored."""
        return _decode(self.type, self.payload, 0).value

    def text(self, what: str) -> Any:
        """As `value`, with strings as str; ModelError naming `what` if one is not UTF-8."""
        return _to_text(self.value, what)


class _Decoded(NamedTuple):
    value: Any
    end: int


def _encode(kind: ValueType, value: Any) -> bytes:
    try:
        if kind == ValueType.STRING:
            text = value.encode() if isinstance(value, str) else bytes(memoryview(value))
            return U64.pack(len(text)) + text
        if kind == ValueType.ARRAY:
            return bytes(value.payload)
        return struct.pack(SCALAR_CODES[kind], value)
    except (struct.error, OverflowError, TypeError, AttributeError, UnicodeEncodeError) as e:
        shown = f"{value!r:.60}"
        raise InvalidArgument(f"metadata value {shown} is not a {kind.name}: {e}") from e


def _decode(kind: ValueType, data: Encoded, at: int) -> _Decoded:
    """The value at byte `at` of a payload that was validated when it was read or made."""
    if kind == ValueType.STRING:
        start = at + U64.size
        end = start + U64.unpack_from(data, at)[0]
        return _Decoded(bytes(data[start:end]), end)
    if kind == ValueType.ARRAY:
        return _decode_array(data, at)
    (scalar,) = struct.unpack_from(SCALAR_CODES[kind], data, at)
    return _Decoded(scalar, at + SCALAR_BYTES[kind])


def _decode_array(data: Encoded, at: int) -> _Decoded:
    element, count = ARRAY_HEAD.unpack_from(data, at)
    kind, at = ValueType(element), at + ARRAY_HEAD.size
    if kind in SCALAR_CODES:
        end = at + count * SCALAR_BYTES[kind]
        return _Decoded(np.frombuffer(data[at:end], SCALAR_CODES[kind]).tolist(), end)
    items = []
    for _ in range(count):
        item, at = _decode(kind, data, at)
        items.append(item)
    return _Decoded(items, at)


def _depth(value: Any) -> int:
    if not isinstance(value, list):
        return 0
    return 1 + max(map(_depth, value), default=0)


def _to_text(value: Any, what: str) -> Any:
    if isinstance(value, list):
        return [_to_text(item, f"{what}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as e:
        raise ModelError(
            f"{what} is not valid UTF-8 at byte {e.start} of {len(value)}: 0x{value[e.start]:02x}"
        ) from e
