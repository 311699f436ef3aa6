"""Owns GGUF files that break one rule of reading each, and opening a file for the reader."""

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.cpu.gguf_cases import (
    ARRAY,
    F32,
    Q4_K,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    array,
    every_type,
    gguf,
    nested_arrays,
    pair,
    tensor,
    text,
    u32,
    u64,
)


@dataclass(frozen=True)
class Opened:
    """An open descriptor and the length of its file."""

    fd: int
    n_bytes: int


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """The file, open."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield Opened(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


class Unsound(NamedTuple):
    """Bytes that must be refused with that kind."""

    name: str
    data: bytes
    kind: str


def one(name: bytes, *args: object, **kw: object) -> bytes:
    return gguf((), [tensor(name, *args, **kw)], bytes(64))  # type: ignore[arg-type]


def meta(*values: bytes) -> bytes:
    """Pairs `x0`, `x1` ... that are arrays."""
    return gguf([pair(b"x%d" % i, ARRAY, value) for i, value in enumerate(values)])


def alignment(kind: int, value: bytes) -> bytes:
    return gguf([pair(b"general.alignment", kind, value)])


LIMIT, CUT, SHAPE = "gguf_limit_exceeded", "gguf_truncated", "gguf_bad_shape"


def unsound_files() -> list[Unsound]:
    """One file for each rule and more."""
    return [Unsound(*row) for row in (*_preambles_and_lengths(), *_names_types_and_places())]


def _preambles_and_lengths() -> list[tuple[str, bytes, str]]:
    a, at_32 = tensor(b"a", (8,)), tensor(b"b", (8,), F32, 32)
    whole = every_type()
    text_limit = 16 << 20
    return [
        ("M60 text", b"hello, world\n" * 9, "gguf_bad_magic"),
        ("M60 empty", b"", "gguf_bad_magic"),
        ("M60 three bytes", b"GGU", "gguf_bad_magic"),
        ("magic alone", b"GGUF", CUT),
        ("version 1", gguf(version=u32(1)), "unsupported_gguf_version"),
        ("version 4", gguf(version=u32(4)), "unsupported_gguf_version"),
        *((f"big-endian {n}", gguf(version=struct.pack(">I", n)), "unsupported_gguf_endianness")
          for n in (1, 2, 3)),
        ("M61 in the counts", whole[:20], CUT),
        ("M61 in the pairs", whole[:900], CUT),
        ("M61 in the tensor table", gguf((), [a, at_32])[:-3], CUT),
        ("M61 before the data", gguf((), [a]), CUT),
        ("M62 key count", gguf(n_pairs=2**63), LIMIT),
        ("M62 tensor count", gguf(n_tensors=2**63), LIMIT),
        ("key count of 1000001", gguf(n_pairs=1_000_001), LIMIT),
        ("key count of 1000000", gguf(n_pairs=1_000_000), CUT),
        ("tensor count of 1000000", gguf(n_tensors=1_000_000), CUT),
        *((f"M62 array length, type {kind}", meta(array(kind, 2**63)), LIMIT)
          for kind in (UINT8, UINT64, STRING, ARRAY)),
        ("array of 16777217", meta(array(UINT8, 16_777_217)), LIMIT),
        ("array of 16777216", meta(array(UINT8, 16_777_216)), CUT),
        ("M62 string length", gguf([pair(b"x", STRING, u64(2**63))]), LIMIT),
        ("M62 string length in an array", meta(array(STRING, 1, u64(2**63))), LIMIT),
        ("string over the limit", gguf([pair(b"x", STRING, u64(text_limit + 1))]), LIMIT),
        ("string past the end", gguf([pair(b"x", STRING, u64(text_limit))]), CUT),
        ("string in an array past the end", meta(array(STRING, 1, u64(text_limit))), CUT),
        ("second length past the end", meta(array(STRING, 2, text(b"12345678") + b"123")), CUT),
        ("key of 65536 bytes", gguf([pair(b"k" * 65_536, UINT8, b"1")]), LIMIT),
        ("key of 2^63 bytes", gguf([u64(2**63) + bytes(40)]), LIMIT),
        ("tensor name of 256 bytes", one(b"n" * 256, (1,)), LIMIT),
        ("arrays 5 deep", meta(nested_arrays(5)), LIMIT),
        ("arrays 6000 deep", meta(nested_arrays(6000)), LIMIT),
    ]  # fmt: skip


def _names_types_and_places() -> list[tuple[str, bytes, str]]:
    a, at_32 = tensor(b"a", (8,)), tensor(b"b", (8,), F32, 32)
    return [
        ("key not text", gguf([pair(b"k\xff", UINT8, b"1")]), "gguf_invalid_utf8"),
        ("key with NUL", gguf([pair(b"k\0x", UINT8, b"1")]), "gguf_invalid_utf8"),
        ("tensor name not text", one(b"n\x80", (1,)), "gguf_invalid_utf8"),
        ("duplicate key", gguf([pair(b"x", UINT8, b"1")] * 2), "gguf_duplicate_key"),
        ("duplicate tensor", gguf((), [a, tensor(b"a", (8,), F32, 32)], bytes(64)),
         "gguf_duplicate_tensor"),
        ("value type 13", gguf([pair(b"x", 13, bytes(8))]), "gguf_unknown_type"),
        ("element type 13", meta(array(13, 1, bytes(8))), "gguf_unknown_type"),
        ("ggml type 4", one(b"n", (32,), 4), "gguf_unknown_type"),
        ("ggml type 2^32-1", one(b"n", (32,), 2**32 - 1), "gguf_unknown_type"),
        ("row of 32 in Q4_K", one(b"n", (32, 8), Q4_K), SHAPE),
        ("no dimensions", one(b"n", ()), SHAPE),
        ("M63 5 dimensions", one(b"n", (1,) * 5), SHAPE),
        ("M63 dimensions wrap to 0", one(b"n", (2**32, 2**32)), SHAPE),
        ("M63 dimensions wrap", one(b"n", (2**42 + 1, 2**22)), SHAPE),
        ("M63 bytes over 2^63-1", one(b"n", (2**62,)), SHAPE),
        ("zero dimension", one(b"n", (4, 0)), SHAPE),
        ("M64 offset past the end", gguf((), [at_32], bytes(32)), CUT),
        ("M64 offset near 2^64", gguf((), [tensor(b"a", (8,), F32, 2**64 - 32)], bytes(64)), CUT),
        ("M64 unaligned", gguf((), [tensor(b"a", (1,), F32, 4)], bytes(64)), "gguf_bad_offset"),
        ("M65 same bytes", gguf((), [a, tensor(b"b", (8,))], bytes(64)),
         "gguf_overlapping_tensors"),
        ("M65 one byte", gguf((), [tensor(b"a", (33,), 24), at_32], bytes(64)),
         "gguf_overlapping_tensors"),
        *((f"M66 alignment {n}", alignment(UINT32, u32(n)), "gguf_bad_alignment")
          for n in (0, 24, 4, 131_072, 2**32 - 1)),
        ("M66 alignment as u64", alignment(UINT64, u64(32)), "gguf_bad_alignment"),
    ]  # fmt: skip
