"""Owns a position in a GGUF header that is read from a descriptor piece by piece, and its fields.

It must not know the order of the fields (`fragment_reader.py`). Memory follows the bytes that are
there: nothing that the file claims is looped over or allocated before it was compared with its
limit and with the bytes that are left. A name may be empty; a NUL in one is refused, for C would
cut it there and two names would be one. All text elements and inner arrays of a file together are
limited too: they are what costs time.
"""

import os

from engine.artifacts.gguf_types import MIN_ITEM_BYTES, SCALAR_BYTES, U32, U64, ValueType
from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import GgufError

MAX_STRING_BYTES = 16 << 20
MAX_ARRAY_ELEMENTS = 16_777_216
MAX_ARRAY_DEPTH = 4
MAX_ITEMS = 4 * MAX_ARRAY_ELEMENTS
SHOWN_NAME = 80
_FIRST_READ_BYTES = 256 << 10
_PIECE_BYTES = 4 << 20
_TYPES = {int(kind): kind for kind in ValueType}


class Cursor:
    """A position in the file, and what of the file's start was read so far.

    Every refusal is a GgufError with the artifact, the field, the value and the limit.
    """

    def __init__(self, fd: int, n_bytes: int, artifact: str) -> None:
        self.fd, self.end, self.artifact = fd, n_bytes, artifact
        self.data = bytearray()
        self.at = 0
        self.n_items = 0

    def bad(self, kind: str, message: str) -> GgufError:
        return GgufError(kind, message, artifact=self.artifact)

    def need(self, n_bytes: int, field: str) -> int:
        """Claim bytes, read them if need be, and return where they begin."""
        left = max(self.end - self.at, 0)
        if n_bytes > left or self.at > self.end:
            raise self.bad(
                "gguf_truncated", f"{field} takes {n_bytes} bytes, {left} are left in the file"
            )
        start = self.at
        self.at += n_bytes
        if self.at > len(self.data):
            self.read_to(self.at, field)
        return start

    def read_to(self, n_bytes: int, field: str) -> None:
        """Have that many bytes of the file's start, and some more: as much again, up to a piece."""
        ahead = len(self.data) + min(max(len(self.data), _FIRST_READ_BYTES), _PIECE_BYTES)
        wanted = min(max(n_bytes, ahead), self.end)
        while len(self.data) < wanted:
            have = len(self.data)
            piece = os.pread(self.fd, min(wanted - have, _PIECE_BYTES), have)
            if not piece:
                raise self.bad("gguf_truncated", f"{field}: the file now ends at byte {have}")
            self.data += piece

    def goes_on_with(self, known: bytes, field: str) -> bool:
        """Whether the next bytes are these."""
        if len(known) > self.end - self.at:
            return False
        if self.at + len(known) > len(self.data):
            self.read_to(self.at + len(known), field)
        return self.data.startswith(known, self.at)

    def taken(self, start: int) -> bytes:
        """A copy of the bytes from there to here."""
        with memoryview(self.data) as view:
            return bytes(view[start : self.at])

    def u32(self, field: str) -> int:
        start = self.need(U32.size, field)
        return int(U32.unpack_from(self.data, start)[0])

    def u64(self, field: str) -> int:
        start = self.need(U64.size, field)
        return int(U64.unpack_from(self.data, start)[0])

    def limited(self, field: str, limit: int) -> int:
        number = self.u64(field)
        if number > limit:
            raise self.bad("gguf_limit_exceeded", f"{field} is {number}, the limit is {limit}")
        return number

    def name(self, field: str, limit: int) -> str:
        n_bytes = self.limited(f"length of {field}", limit)
        start = self.need(n_bytes, field)
        raw = bytes(self.data[start : self.at])
        try:
            text = raw.decode()
        except UnicodeDecodeError as e:
            shown = printable(raw, SHOWN_NAME)
            raise self.bad(
                "gguf_invalid_utf8", f"{field} {shown} is not valid UTF-8 at byte {e.start}"
            ) from e
        if "\0" in text:
            raise self.bad("gguf_invalid_utf8", f"{field} {printable(raw, SHOWN_NAME)} has a NUL")
        return text

    def value_type(self, field: str) -> ValueType:
        number = self.u32(field)
        if number not in _TYPES:
            raise self.bad(
                "gguf_unknown_type", f"{field} is {number}, the highest known is {max(_TYPES)}"
            )
        return _TYPES[number]

    def skip_value(self, kind: ValueType, field: str) -> None:
        if kind == ValueType.ARRAY:
            self.skip_array(field, 1)
        elif kind == ValueType.STRING:
            self.need(self.limited(f"length of {field}", MAX_STRING_BYTES), field)
        else:
            self.need(SCALAR_BYTES[kind], field)

    def skip_array(self, field: str, depth: int) -> None:
        """Depth is limited, so this may recurse."""
        if depth > MAX_ARRAY_DEPTH:
            raise self.bad(
                "gguf_limit_exceeded", f"{field} nests arrays more than {MAX_ARRAY_DEPTH} deep"
            )
        kind = self.value_type(f"element type of {field}")
        count = self.limited(f"element count of {field}", MAX_ARRAY_ELEMENTS)
        left = self.end - self.at
        if count * MIN_ITEM_BYTES[kind] > left:
            raise self.bad(
                "gguf_truncated",
                f"{field} claims {count} elements of {kind.name},"
                f" at most {left // MIN_ITEM_BYTES[kind]} fit in the {left} bytes left",
            )
        if kind in SCALAR_BYTES:
            self.need(count * SCALAR_BYTES[kind], field)
            return
        self.n_items += count
        if self.n_items > MAX_ITEMS:
            raise self.bad(
                "gguf_limit_exceeded",
                f"{field} brings the file to {self.n_items} texts and inner arrays,"
                f" the limit is {MAX_ITEMS}",
            )
        if kind == ValueType.STRING:
            self.skip_strings(count, field)
            return
        for _ in range(count):
            self.skip_array(field, depth + 1)

    def skip_strings(self, count: int, field: str) -> None:
        """Written out with locals: this loop is most of the time of reading a real header."""
        length_at, data, at, end = U64.unpack_from, self.data, self.at, len(self.data) - U64.size
        for _ in range(count):
            if at > end:
                self.at = at
                self.need(U64.size, f"a length in {field}")
                end = len(data) - U64.size
            n_bytes = length_at(data, at)[0]
            if n_bytes > MAX_STRING_BYTES:
                raise self.bad(
                    "gguf_limit_exceeded",
                    f"{field} has a text of {n_bytes} bytes, the limit is {MAX_STRING_BYTES}",
                )
            at += 8 + n_bytes
        self.at = at
        self.need(0, f"the last text of {field}")
