"""Owns protobuf wire format: varints and length-delimited fields, both ways.

It must not know any message. Of a message only the fields that its schema lists are kept; others
are stepped over, groups too, without recursion and without copying them.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from packages.layer_package.errors import TransferError

Kind = Literal["u32", "u64", "bool", "bytes", "string"]
Value = int | bool | bytes | str
# field number -> (name, kind, longest value in bytes)
Schema = Mapping[int, tuple[str, Kind, int]]

# A message of ours has 11 fields; the rest is room for additions. Without it a frame of 8 MiB
# could hold four million empty fields, or begin as many groups.
_MAX_FIELDS = 256
_VARINT, _I64, _DELIMITED, _GROUP, _GROUP_END, _I32 = range(6)
_MAX_FIELD_NUMBER = (1 << 29) - 1


def encode_varint(value: int) -> bytes:
    """A u64 in 1 to 10 bytes."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_field(number: int, value: Value) -> bytes:
    """One field with its tag; integers and booleans as varints, text as UTF-8."""
    if isinstance(value, int):
        return encode_varint(number << 3 | _VARINT) + encode_varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return encode_varint(number << 3 | _DELIMITED) + encode_varint(len(raw)) + raw


def decode_fields(data: bytes, schema: Schema, what: str) -> dict[str, Value]:
    """The values of known fields by name; the last of a repeated one counts.

    TransferError `invalid_transfer_message` for anything that is not sound wire format, a known
    field of another wire type, a value over its kind's range or its limit, and text that is no
    UTF-8.
    """
    out: dict[str, Value] = {}
    for number, wire_type, value in _fields(data, what):
        if number not in schema:
            continue
        name, kind, limit = schema[number]
        out[name] = _value(value, wire_type, kind, limit, f"{what}.{name}")
    return out


def _value(value: int | memoryview, wire_type: int, kind: Kind, limit: int, what: str) -> Value:
    if wire_type != (_DELIMITED if kind in ("bytes", "string") else _VARINT):
        raise _bad(f"{what} has wire type {wire_type}")
    if isinstance(value, int):
        if kind == "bool":
            return value != 0
        if kind == "u32" and value >> 32:
            raise _bad(f"{what} is {value}, over u32")
        return value
    if len(value) > limit:
        raise _bad(f"{what} has {len(value)} bytes, the limit is {limit}")
    raw = bytes(value)
    if kind == "bytes":
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        raise _bad(f"{what} is not UTF-8 at byte {e.start}") from e


def _fields(data: bytes, what: str) -> Iterator[tuple[int, int, int | memoryview]]:
    view = memoryview(data)
    at = n_fields = 0
    groups: list[int] = []
    while at < len(view):
        n_fields += 1
        if n_fields > _MAX_FIELDS:
            raise _bad(f"{what} has more than {_MAX_FIELDS} fields")
        tag, at = _varint(view, at, what)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= _MAX_FIELD_NUMBER:
            raise _bad(f"{what} has field number {number}")
        if wire_type == _GROUP:
            groups.append(number)
        elif wire_type == _GROUP_END:
            if not groups or groups.pop() != number:
                raise _bad(f"{what} ends group {number}, which is not open")
        else:
            value, at = _payload(view, at, wire_type, what)
            if not groups:
                yield number, wire_type, value
    if groups:
        raise _bad(f"{what} does not end group {groups[-1]}")


def _payload(
    view: memoryview, at: int, wire_type: int, what: str
) -> tuple[int | memoryview, int]:
    if wire_type == _VARINT:
        return _varint(view, at, what)
    if wire_type == _DELIMITED:
        n_bytes, at = _varint(view, at, what)
    elif wire_type in (_I64, _I32):
        n_bytes = 8 if wire_type == _I64 else 4
    else:
        raise _bad(f"{what} has wire type {wire_type}")
    if n_bytes > len(view) - at:
        raise _bad(f"{what} has a field of {n_bytes} bytes, {len(view) - at} are left")
    return view[at : at + n_bytes], at + n_bytes


def _varint(view: memoryview, at: int, what: str) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(view[at : at + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value >> 64:
                raise _bad(f"{what} has a varint over u64")
            return value, at + i + 1
    raise _bad(f"{what} has a varint that does not end")


def _bad(message: str) -> TransferError:
    return TransferError("invalid_transfer_message", message)
