"""Owns hand-made .mspec bytes for tests: small sound files, and files that lie.

Packs fields with `struct` alone, on purpose without the project's writer, so that a mistake in one
cannot hide in the other. Each `Hostile` says which words its refusal must contain.
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


class Hostile(NamedTuple):
    """A file that must be refused, and the words the message must contain."""

    name: str
    data: bytes
    words: tuple[str, ...]


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


def _one(**fields: object) -> bytes:
    """A file with one F32 [4] whose record lies."""
    item = Item(b"x", bytes(16), shape=(4,))._replace(**fields)
    return mspec([item], head=identity([Item(b"x", bytes(16), shape=(4,))]))


def _named(name: bytes) -> bytes:
    return _one(name=name)


def _shaped(shape: tuple[int, ...], dtype: int = F32, layout: int = ROW_MAJOR) -> bytes:
    return _one(shape=shape, dtype=dtype, layout=layout)


def hostile_files() -> list[Hostile]:
    """Small files with one lie each."""
    x, y = Item(b"x", bytes(16), shape=(4,)), Item(b"y", bytes(16), shape=(4,))
    good = mspec([x])
    flat = seal(b"", 256, 0)
    return [Hostile(*case) for case in (
        ("no_mspec", b"GGUF" + bytes(300), ("begins with", "MESHSPEC")),
        ("magic_alone", b"MESHSPEC\0", ("9 bytes", "256")),
        ("short_header", good[:255], ("255 bytes", "256")),
        ("header_alone", good[:256], ("256 bytes", "header says")),
        ("version_0", mspec([x], version=0), ("version 0", "1")),
        ("version_2", mspec([x], version=2), ("version 2", "1")),
        ("version_swapped", mspec([x], version=1 << 24), ("version 16777216",)),
        ("file_longer", good + b"\0", (f"{len(good) + 1} bytes", f"{len(good)}")),
        ("file_bytes_2_63", mspec([x], n_bytes=2**63), ("header says", str(2**63))),
        ("a_million_objects", mspec([x], n_objects=10**6), ("1000000", "32768")),
        ("2_64_objects", mspec([x], n_objects=2**64 - 1), (str(2**64 - 1), "32768")),
        ("one_object_more", mspec([x], n_objects=2), ("object record", "56", "0 are left")),
        ("one_object_less", mspec([x], n_objects=0), ("65 bytes of the directory are left",)),
        ("directory_too_long", mspec([x], length=17 << 20), ("directory of", str(16 << 20))),
        ("directory_2_64", mspec([x], length=2**64 - 1), ("directory of", str(16 << 20))),
        ("directory_in_header", mspec([x], offset=0), ("directory of", "at 0")),
        ("directory_past_end", mspec([x], offset=2**64 - 1), (str(2**64 - 1),)),
        ("directory_short", mspec([x], length=10), ("directory of 10 bytes",)),
        ("directory_empty", flat, ("length of model_id", "0 are left")),
        ("identity_cut", seal(b"\1\0\0\0a", 256, 0) + b"\1\0\0\0a", ("weights_id", "32 bytes")),
        ("model_id_empty", mspec(head=identity([], b"")), ("model_id has 0 bytes",)),
        ("model_id_long", mspec(head=identity([], b"a" * 257)), ("257 bytes", "256")),
        ("model_id_length", mspec(head=b"\xff" * 8), ("4294967295", "256")),
        ("model_id_not_utf8", mspec(head=identity([], b"\xff")), ("model_id", "UTF-8")),
        ("weights_id_wrong", mspec([x], head=identity([x], weights=b"w" * 32)),
            ("weights_id " + b"w".hex() * 32, "by its tensors")),
        ("left_over", mspec([x], extra=b"\0"), ("1 bytes of the directory are left",)),
        ("gap_before_directory", mspec([x], gap=256), ("directory at 768", "512")),
        ("name_empty", _named(b""), ("object name has 0 bytes",)),
        ("name_long", _named(b"n" * 257), ("257 bytes", "256")),
        ("name_not_utf8", _named(b"a\xff"), ("object name", "UTF-8 at byte 1")),
        ("name_with_nul", _named(b"a\0b"), ("object name", "NUL")),
        ("name_length_lies", _one(name_bytes=200), ("object name takes 200 bytes",)),
        ("name_length_2_32", _one(name_bytes=2**32 - 1), ("4294967295",)),
        ("twice", mspec([x, x]), ("'x' occurs twice",)),
        ("kind_0", _one(kind=0), ("'x'", "kind 0")),
        ("kind_5", _one(kind=5), ("'x'", "kind 5")),
        ("dtype_7", _one(dtype=7), ("'x'", "dtype 7")),
        ("layout_4", _one(layout=4), ("'x'", "layout 4")),
        ("text_of_f32", _one(kind=TEXT), ("'x'", "text of f32")),
        ("tensor_of_u8", _one(dtype=U8), ("'x'", "tensor of u8")),
        ("f32_in_int4_layout", _one(layout=INT4_GROUP), ("'x'", "kept as row_major")),
        ("int4_in_rows", _shaped((8, 128), INT4), ("'x'", "kept as int4_symmetric")),
        ("no_dims", _shaped(()), ("'x'", "shape []")),
        ("dims_9", _shaped((1,) * 9), ("9 dimensions", "8")),
        ("dims_255", _one(n_dims=255), ("255 dimensions", "8")),
        ("dims_lie", _one(n_dims=8), ("dimensions takes 64 bytes",)),
        ("dim_0", _shaped((4, 0)), ("'x'", "shape [4, 0]")),
        ("product_wraps_to_16", _shaped((2**62, 4, 2**62, 4)), ("'x'", "is more than")),
        ("dims_2_64", _shaped((2**64 - 1,) * 8), ("'x'", "is more than")),
        ("int4_k_64", _shaped((8, 64), INT4, INT4_GROUP), ("'x'", "[8, 64]", "128")),
        ("int4_n_4", _shaped((4, 128), INT4, INT4_GROUP), ("'x'", "[4, 128]", "8")),
        ("int4_3d", _shaped((1, 8, 128), INT4, INT4_GROUP), ("'x'", "[1, 8, 128]")),
        ("int8_k_192", _shaped((8, 192), INT8, INT8_GROUP), ("'x'", "[8, 192]", "128")),
        ("int4_2_64", _shaped((2**63, 2**63), INT4, INT4_GROUP), ("'x'", "is more than")),
        ("shape_too_large", _shaped((5,)), ("'x'", "length 16", "20")),
        ("shape_too_small", _shaped((3,)), ("'x'", "length 16", "12")),
        ("length_less", _one(length=15), ("'x'", "length 15", "16")),
        ("length_2_64", _one(length=2**64 - 1), ("'x'", str(2**64 - 1))),
        ("past_the_end", _one(shape=(2**20,), length=2**22), ("directory at 512",)),
        ("offset_in_header", _one(offset=0), ("'x'", "offset 0", "256")),
        ("offset_misaligned", _one(offset=257), ("'x'", "offset 257", "256")),
        ("offset_out_of_file", _one(offset=2**64 - 256), ("'x'", str(2**64 - 256))),
        ("overlap", mspec([x, y._replace(offset=256)]), ("'y'", "offset 256", "512")),
        ("swapped", mspec([x._replace(offset=512), y._replace(offset=256)]), ("'x'", "512")),
        ("hole", mspec([x, y._replace(offset=768)]), ("'y'", "offset 768", "512")),
        ("text_2d", mspec([text_item(b"t", bytes(4))._replace(shape=(2, 2))]), ("'t'", "[2, 2]")),
        ("text_too_long", mspec([text_item(b"t", b"a")._replace(
            shape=((64 << 20) + 1,), length=(64 << 20) + 1)]), ("'t'", str(64 << 20))),
    )]  # fmt: skip
