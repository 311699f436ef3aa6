"""Owns hand-made GGUF bytes for tests: small sound files, and files that lie.

Packs fields with `struct` alone, on purpose without the project's writer, so that a mistake in one
cannot hide in the other. Each `Hostile` says which words its refusal must contain.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

UINT8, UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 4, 6, 7, 8, 9, 10
F32, Q4_1, Q4_K, I8 = 0, 3, 12, 24


class Hostile(NamedTuple):
    """A file that must be refused, and the words the message must contain."""

    name: str
    data: bytes
    words: tuple[str, ...]


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def text(raw: bytes) -> bytes:
    return u64(len(raw)) + raw


def pair(key: bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + u32(kind) + payload


def array(element: int, count: int, payload: bytes = b"") -> bytes:
    return u32(element) + u64(count) + payload


def tensor(
    name: bytes, dims: Sequence[int], kind: int = F32, offset: int = 0, n_dims: int | None = None
) -> bytes:
    claimed = len(dims) if n_dims is None else n_dims
    return text(name) + u32(claimed) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def gguf(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
    version: bytes = u32(3),
    alignment: int = 32,
) -> bytes:
    head = b"GGUF" + version
    head += u64(len(tensors) if n_tensors is None else n_tensors)
    head += u64(len(pairs) if n_pairs is None else n_pairs)
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment if data else 0) + data


SCALARS = (
    (0, "<B", 200), (1, "<b", -100), (2, "<H", 60000), (3, "<h", -30000), (4, "<I", 4 * 10**9),
    (5, "<i", -2 * 10**9), (6, "<f", 0.15625), (7, "<?", True), (10, "<Q", 2**64 - 1),
    (11, "<q", -(2**63)), (12, "<d", 0.1),
)  # fmt: skip


def every_type() -> bytes:
    """Every value type, arrays of each, arrays of arrays, two tensors; under 3 kB."""
    pairs = [pair(b"scalar.%d" % kind, kind, struct.pack(c, v)) for kind, c, v in SCALARS]
    pairs += [
        pair(b"array.%d" % kind, ARRAY, array(kind, 3, struct.pack(c, v) * 3))
        for kind, c, v in SCALARS
    ]
    words = text(b"caf\xc3\xa9") + text(b"") + text(b"\xff\x00")
    nested = array(UINT32, 2, u32(1) + u32(2)) + array(STRING, 3, words) + array(ARRAY, 0)
    pairs += [
        pair(b"string", STRING, text("наука".encode())),
        pair(b"string.binary", STRING, text(b"\xff\x00")),
        pair(b"array.string", ARRAY, array(STRING, 3, words)),
        pair(b"array.empty", ARRAY, array(STRING, 0)),
        pair(b"array.nested", ARRAY, array(ARRAY, 3, nested)),
    ]
    infos = [tensor(b"a", (4, 3)), tensor(b"blk.0.b", (32, 1, 2), Q4_1, 64)]
    data = struct.pack("<12f", *range(12)) + bytes(16) + bytes(range(40))
    return gguf(pairs, infos, data)


def nested_arrays(depth: int) -> bytes:
    """`depth` arrays one in the other, each of length 1, around one empty array of bytes."""
    return array(ARRAY, 1) * (depth - 1) + array(UINT8, 0)


def hostile_files() -> list[Hostile]:
    """Files of a few kB at most, each unsound in one way."""
    return [*_preambles(), *_counts(), *_metadata(), *_alignments(), *_tensors(), *_places()]


def _preambles() -> list[Hostile]:
    return [
        Hostile("empty file", b"", ("0 bytes",)),
        Hostile("one byte", b"G", ("b'G'", "GGUF")),
        Hostile("other magic", b"ggml" + bytes(40), ("b'ggml'", "GGUF")),
        Hostile("magic alone", b"GGUF", ("version", "4 bytes", "0 bytes")),
        Hostile("version 1", gguf(version=u32(1)), ("version 1", "3")),
        Hostile("version 2", gguf(version=u32(2)), ("version 2", "3")),
        Hostile("version 4", gguf(version=u32(4)), ("version 4", "3")),
        Hostile("bytes swapped", gguf(version=struct.pack(">I", 3)), ("big-endian",)),
        Hostile("cut in the counts", gguf()[:20], ("metadata pair count", "8 bytes", "4 bytes")),
    ]


def _counts() -> list[Hostile]:
    return [
        Hostile(f"{what} {count}", data, (what, str(count)))
        for count in (2**64 - 1, 2**63, 2**62, 40_000, 3)
        for what, data in (
            ("tensor count", gguf(n_tensors=count)),
            ("metadata pair count", gguf(n_pairs=count)),
        )
    ]


def _metadata() -> list[Hostile]:
    x = pair(b"x", UINT32, u32(7))
    huge = 2**63
    return [
        Hostile("key length 2^48", gguf([u64(2**48) + bytes(40)]), ("key", str(2**48), "1024")),
        Hostile("key length 2^64-1", gguf([u64(2**64 - 1) + bytes(40)]), ("key", "1024")),
        Hostile("key of 1025 bytes", gguf([pair(b"k" * 1025, UINT8, b"1")]), ("1025", "1024")),
        Hostile("empty key", gguf([pair(b"", UINT8, b"1")]), ("key", "0 bytes")),
        Hostile("key not text", gguf([pair(b"k\xff", UINT8, b"1")]), ("'k\\xff'", "UTF-8")),
        Hostile("key with NUL", gguf([pair(b"k\0x", UINT8, b"1")]), ("'k\\x00x'", "NUL")),
        Hostile("duplicate key", gguf([x, x]), ("'x'", "twice")),
        Hostile("value type 13", gguf([pair(b"x", 13, bytes(8))]), ("'x'", "13", "12")),
        Hostile("value type 2^32-1", gguf([pair(b"x", 2**32 - 1, bytes(8))]), ("'x'", "12")),
        Hostile("value cut", gguf([pair(b"x", UINT64, b"1234")]), ("'x'", "8 bytes", "4 bytes")),
        Hostile("string 2^62", gguf([pair(b"x", STRING, u64(2**62))]), ("'x'", str(2**62))),
        Hostile("bool 2", gguf([pair(b"x", BOOL, b"\2")]), ("'x'", "2")),
        Hostile("bool 255 in an array", gguf([pair(b"x", ARRAY, array(BOOL, 3, b"\0\1\xff"))]),
                ("'x'", "255")),
        *(
            Hostile(f"array of type {kind}, {n}", gguf([pair(b"x", ARRAY, array(kind, n))]),
                    ("'x'", str(n)))
            for kind in (UINT8, UINT64, STRING, ARRAY) for n in (huge, 2**62, 2**64 - 1, 1)
        ),
        Hostile("array of type 13", gguf([pair(b"x", ARRAY, array(13, 1, bytes(8)))]),
                ("'x'", "13", "12")),
        Hostile("string in an array 2^48", gguf([pair(b"x", ARRAY, array(STRING, 1, u64(2**48)))]),
                ("'x'", "element 0", str(2**48))),
        Hostile("length past the end", gguf(
            [pair(b"x", ARRAY, array(STRING, 2, text(b"12345678") + b"123"))]),
                ("'x'", "element 1 of 2")),
        Hostile("arrays 9 deep", gguf([pair(b"x", ARRAY, nested_arrays(9))]), ("'x'", "9", "8")),
        Hostile("arrays 6000 deep", gguf([pair(b"x", ARRAY, nested_arrays(6000))]),
                ("'x'", "9", "8")),
    ]  # fmt: skip


def _alignments() -> list[Hostile]:
    key = b"general.alignment"
    return [
        *(
            Hostile(f"alignment {n}", gguf([pair(key, UINT32, u32(n))]),
                    ("general.alignment", str(n), "power of two"))
            for n in (0, 3, 48, 2**31, 2**32 - 1)
        ),
        Hostile("alignment as text", gguf([pair(key, STRING, text(b"32"))]),
                ("general.alignment", "STRING", "UINT32")),
        Hostile("alignment as uint64", gguf([pair(key, UINT64, u64(32))]),
                ("general.alignment", "UINT64", "UINT32")),
    ]  # fmt: skip


def _tensors() -> list[Hostile]:
    def one(*args: object, **kw: object) -> bytes:
        return gguf((), [tensor(*args, **kw)], bytes(64))  # type: ignore[arg-type]

    return [
        Hostile("name of 257 bytes", one(b"n" * 257, (1,)), ("name", "257", "256")),
        Hostile("name length 2^63", gguf((), [u64(2**63) + bytes(60)]), ("name", str(2**63))),
        Hostile("empty name", one(b"", (1,)), ("name", "0 bytes")),
        Hostile("name not text", one(b"n\x80", (1,)), ("'n\\x80'", "UTF-8")),
        Hostile("name with NUL", one(b"n\0", (1,)), ("'n\\x00'", "NUL")),
        Hostile("no dimensions", one(b"n", ()), ("'n'", "0", "1")),
        Hostile("5 dimensions", one(b"n", (1,) * 5), ("'n'", "5", "4")),
        Hostile("2^32-1 dimensions", one(b"n", (1,), n_dims=2**32 - 1), ("'n'", "4294967295")),
        Hostile("zero dimension", one(b"n", (4, 0)), ("'n'", "(4, 0)", "1")),
        Hostile("product wraps", one(b"n", (2**42 + 1, 2**22)), ("'n'", str(2**22 * (2**42 + 1)))),
        Hostile("product wraps to 0", one(b"n", (2**32, 2**32)), ("'n'", str(2**64))),
        Hostile("dimension 2^64-1", one(b"n", (2**64 - 1,)), ("'n'", str(2**64 - 1))),
        Hostile("bytes wrap", one(b"n", (2**62,)), ("'n'", "file has")),
        Hostile("type withdrawn", one(b"n", (32,), 4), ("'n'", "type 4")),
        Hostile("type 43", one(b"n", (32,), 43), ("'n'", "type 43", "42")),
        Hostile("type 2^32-1", one(b"n", (32,), 2**32 - 1), ("'n'", "4294967295")),
        Hostile("row of 31 in Q4_1", one(b"n", (31, 32), Q4_1), ("'n'", "31", "Q4_1", "32")),
        Hostile("row of 32 in Q4_K", one(b"n", (32, 8), Q4_K), ("'n'", "32", "Q4_K", "256")),
        Hostile("record cut", gguf((), [tensor(b"n", (4,))[:-4]]),
                ("offset", "'n'", "8 bytes", "4")),
        Hostile("second record cut", gguf((), [tensor(b"n" * 99, (4,)), tensor(b"m", (4,))[:-4]]),
                ("offset", "'m'")),
    ]  # fmt: skip


def _places() -> list[Hostile]:
    a, at_0, at_32 = tensor(b"a", (8,)), tensor(b"b", (8,)), tensor(b"b", (8,), F32, 32)
    inside = tensor(b"c", (24,))
    return [
        Hostile("duplicate name", gguf((), [at_0, at_32], bytes(64)), ("'b'", "twice")),
        Hostile("same bytes", gguf((), [a, at_0], bytes(64)), ("'b'", "inside", "'a'")),
        Hostile("overlap", gguf((), [at_32, inside], bytes(128)), ("'b'", "inside", "'c'")),
        Hostile("overlap of one byte", gguf((), [tensor(b"a", (33,), I8), at_32], bytes(64)),
                ("'b'", "inside", "'a'")),
        Hostile("offset 4", gguf((), [tensor(b"a", (1,), F32, 4)], bytes(64)), ("'a'", "4", "32")),
        Hostile("offset 2^64-32", gguf((), [tensor(b"a", (8,), F32, 2**64 - 32)], bytes(64)),
                ("'a'", "file has")),
        Hostile("offset past the end", gguf((), [at_32], bytes(32)), ("'b'", "file has")),
        Hostile("last byte missing", gguf((), [at_32], bytes(63)), ("'b'", "file has")),
        Hostile("no data", gguf((), [a]), ("'a'", "file has")),
    ]  # fmt: skip
