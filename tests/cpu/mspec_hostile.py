"""Owns small .mspec files with one lie each, and the words that each refusal must contain."""

from typing import NamedTuple

from tests.cpu.mspec_cases import (
    F32,
    INT4,
    INT4_GROUP,
    INT8,
    INT8_GROUP,
    ROW_MAJOR,
    TEXT,
    U8,
    Item,
    identity,
    mspec,
    padded,
    seal,
    sha256,
    text_item,
)


class Hostile(NamedTuple):
    """A file that must be refused, and the words the message must contain."""

    name: str
    data: bytes
    words: tuple[str, ...]


X, Y = Item(b"x", bytes(16), shape=(4,)), Item(b"y", bytes(16), shape=(4,))
GOOD = mspec([X])


def _one(**fields: object) -> bytes:
    """A file with one F32 [4] whose record lies."""
    return mspec([X._replace(**fields)], head=identity([X]))


def _named(name: bytes) -> bytes:
    return _one(name=name)


def _shaped(shape: tuple[int, ...], dtype: int = F32, layout: int = ROW_MAJOR) -> bytes:
    return _one(shape=shape, dtype=dtype, layout=layout)


def _resealed(fields: bytes) -> bytes:
    """GOOD with other header fields, under a digest that is right."""
    return padded(fields + sha256(fields)) + GOOD[256:]


HEADERS = (
    ("no_mspec", b"GGUF" + bytes(300), ("begins with", "not with 'MESHSPEC")),
    ("magic_alone", b"MESHSPEC\0", ("9 bytes", "256")),
    ("short_header", GOOD[:255], ("255 bytes", "256")),
    ("header_alone", GOOD[:256], ("256 bytes", "header says")),
    ("reserved_bytes", _resealed(GOOD[:9] + b"\0\0\1" + GOOD[12:80]), ("that are zero",)),
    ("version_0", mspec([X], version=0), ("version 0", "1")),
    ("version_2", mspec([X], version=2), ("version 2", "1")),
    ("version_swapped", mspec([X], version=1 << 24), ("version 16777216",)),
    ("file_longer", GOOD + b"\0", (f"{len(GOOD) + 1} bytes", f"{len(GOOD)}")),
    ("file_bytes_2_63", mspec([X], n_bytes=2**63), ("header says", str(2**63))),
    ("a_million_objects", mspec([X], n_objects=10**6), ("1000000", "32768")),
    ("2_64_objects", mspec([X], n_objects=2**64 - 1), (str(2**64 - 1), "32768")),
    ("one_object_more", mspec([X], n_objects=2), ("object record", "56", "0 are left")),
    ("one_object_less", mspec([X], n_objects=0), ("65 bytes of the directory are left",)),
    ("directory_too_long", mspec([X], length=17 << 20), ("directory of", str(16 << 20))),
    ("directory_2_64", mspec([X], length=2**64 - 1), ("directory of", str(16 << 20))),
    ("directory_in_header", mspec([X], offset=0), ("directory of", "at 0")),
    ("directory_past_end", mspec([X], offset=2**64 - 1), (str(2**64 - 1),)),
    ("directory_short", mspec([X], length=10), ("directory of 10 bytes",)),
)  # fmt: skip
DIRECTORIES = (
    ("directory_empty", seal(b"", 256, 0), ("length of model_id", "0 are left")),
    ("identity_cut", seal(b"\1\0\0\0a", 256, 0) + b"\1\0\0\0a", ("weights_id", "32 bytes")),
    ("model_id_empty", mspec(head=identity([], b"")), ("model_id has 0 bytes",)),
    ("model_id_long", mspec(head=identity([], b"a" * 257)), ("257 bytes", "256")),
    ("model_id_length", mspec(head=b"\xff" * 8), ("4294967295", "256")),
    ("model_id_not_utf8", mspec(head=identity([], b"\xff")), ("model_id", "UTF-8")),
    ("weights_id_wrong", mspec([X], head=identity([X], weights=b"w" * 32)),
        ("weights_id " + b"w".hex() * 32, "by its tensors")),
    ("left_over", mspec([X], extra=b"\0"), ("1 bytes of the directory are left",)),
    ("gap_before_directory", mspec([X], gap=256), ("directory at 768", "512")),
    ("name_empty", _named(b""), ("object name has 0 bytes",)),
    ("name_long", _named(b"n" * 257), ("257 bytes", "256")),
    ("name_not_utf8", _named(b"a\xff"), ("object name", "UTF-8 at byte 1")),
    ("name_with_nul", _named(b"a\0b"), ("object name", "NUL")),
    ("name_length_lies", _one(name_bytes=200), ("object name takes 200 bytes",)),
    ("name_length_2_32", _one(name_bytes=2**32 - 1), ("4294967295",)),
    ("twice", mspec([X, X]), ("'x' occurs twice",)),
)  # fmt: skip
OBJECTS = (
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
    ("overlap", mspec([X, Y._replace(offset=256)]), ("'y'", "offset 256", "512")),
    ("swapped", mspec([X._replace(offset=512), Y._replace(offset=256)]), ("'x'", "512")),
    ("hole", mspec([X, Y._replace(offset=768)]), ("'y'", "offset 768", "512")),
    ("text_2d", mspec([text_item(b"t", bytes(4))._replace(shape=(2, 2))]), ("'t'", "[2, 2]")),
    ("text_too_long", mspec([text_item(b"t", b"a")._replace(
        shape=((64 << 20) + 1,), length=(64 << 20) + 1)]), ("'t'", str(64 << 20))),
)  # fmt: skip
HOSTILE = [Hostile(*case) for case in (*HEADERS, *DIRECTORIES, *OBJECTS)]
