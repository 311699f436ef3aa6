"""Owns hand-made .mspec bytes for tests: small sound files, and the means to make them lie.

Packs fields with `struct` alone, on purpose without the project's writer, so that a mistake in one
cannot hide in the other.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

TENSOR, TEXT, JSON, BLOB = 1, 2, 3, 4
F32, F16, BF16, U8, INT8, INT4 = 1, 2, 3, 4, 5, 6
ROW_MAJOR, INT8_GROUP, INT4_GROUP = 1, 2, 3
DTYPE_NAMES = ("", "f32", "f16", "bf16", "u8", "int8", "int4")
LAYOUT_NAMES = (
    "", "row_major", "int8_symmetric_group_bf16_scale", "int4_symmetric_group_bf16_scale",
)  # fmt: skip
RECIPE_SHA256 = "5a" * 32


class Item(NamedTuple):
    """An object to put into a file; a field that is given instead of derived is a lie."""

    name: bytes
    data: bytes
    kind: int = TENSOR
    dtype: int = F32
    layout: int = ROW_MAJOR
    shape: tuple[int, ...] | None = None
    offset: int | None = None
    length: int | None = None
    n_dims: int | None = None
    name_bytes: int | None = None

    def dims(self) -> tuple[int, ...]:
        return self.shape if self.shape is not None else (len(self.data),)


def text_item(name: bytes, data: bytes, kind: int = TEXT) -> Item:
    return Item(name, data, kind, U8)


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def text(raw: bytes) -> bytes:
    return u32(len(raw)) + raw


def sha256(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


def padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 256)


def weights_id(items: Sequence[Item]) -> bytes:
    """By the text of the format, for items without lies."""
    tensors = sorted((i for i in items if i.kind == TENSOR), key=lambda i: i.name)
    stream = b"mspec-weights-1\n" + u64(len(tensors))
    for item in tensors:
        dims = item.dims()
        stream += text(item.name) + text(DTYPE_NAMES[item.dtype].encode()) + u64(len(dims))
        stream += b"".join(map(u64, dims)) + text(LAYOUT_NAMES[item.layout].encode())
        stream += sha256(item.data)
    return sha256(stream)


def record(item: Item, offset: int) -> bytes:
    dims = item.dims()
    at = offset if item.offset is None else item.offset
    length = len(item.data) if item.length is None else item.length
    n_dims = len(dims) if item.n_dims is None else item.n_dims
    name_bytes = len(item.name) if item.name_bytes is None else item.name_bytes
    numbers = bytes((item.kind, item.dtype, item.layout, n_dims))
    place = u64(at) + u64(length) + sha256(item.data)
    return place + numbers + u32(name_bytes) + b"".join(map(u64, dims)) + item.name


def seal(directory: bytes, offset: int, n_objects: int, /, **lies: int) -> bytes:
    """A header; `lies` replace version, n_bytes, offset, length or n_objects."""
    fields = {
        "version": 1, "n_bytes": offset + len(directory), "offset": offset,
        "length": len(directory), "n_objects": n_objects, **lies,
    }  # fmt: skip
    head = b"MESHSPEC\0" + bytes(3) + u32(fields.pop("version"))
    head += b"".join(u64(value) for value in fields.values()) + sha256(directory)
    return padded(head + sha256(head))


def identity(
    items: Sequence[Item], model_id: bytes = b"tiny", weights: bytes | None = None
) -> bytes:
    found = weights_id(items) if weights is None else weights
    return text(model_id) + found + text(b"bf16") + bytes.fromhex(RECIPE_SHA256)


def mspec(
    items: Sequence[Item] = (),
    *,
    head: bytes | None = None,
    extra: bytes = b"",
    gap: int = 0,
    **lies: int,
) -> bytes:
    """A file: its items, `gap` bytes before the directory, `extra` bytes after its last record."""
    data, records = b"", b""
    for item in items:
        records += record(item, 256 + len(data))
        data += padded(item.data)
    data += bytes(gap)
    directory = (identity(items) if head is None else head) + records + extra
    return seal(directory, 256 + len(data), len(items), **lies) + data + directory


def int4_item(name: bytes = b"int4") -> Item:
    """[8, 128]: byte i of the codes is 0x21 (codes 1, 2), scales are 0.5."""
    return Item(name, b"\x21" * 512 + b"\0\x3f" * 8, TENSOR, INT4, INT4_GROUP, (8, 128))


def int8_item(name: bytes = b"int8") -> Item:
    """[8, 128]: row r is r - 4 everywhere, scales are 2."""
    codes = b"".join(bytes(((r - 4) % 256,)) * 128 for r in range(8))
    return Item(name, codes + b"\0\x40" * 8, TENSOR, INT8, INT8_GROUP, (8, 128))


def sound_items() -> list[Item]:
    """Every kind, dtype and layout; under 4 kB."""
    return [
        text_item(b"chat_template", "{{ 'hé' }}".encode()),
        text_item(b"config", b'{"a": 1}', JSON),
        text_item(b"anything", bytes(range(256)), BLOB),
        Item(b"f32", struct.pack("<6f", 1, -2, 0.5, 3e38, 1e-45, -0.0), shape=(2, 3)),
        Item(b"f16", struct.pack("<3e", 1, -2, 65504), dtype=F16, shape=(3,)),
        Item(b"bf16", b"\x80\x3f\x00\xc0\x80\x7f", dtype=BF16, shape=(1, 3, 1)),
        int4_item(),
        int8_item(),
        Item("наука".encode(), bytes(4), shape=(1,)),
    ]
