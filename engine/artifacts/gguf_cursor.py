"""Owns a position in a GGUF file that only moves over bytes which are there.

Knows the small fields (numbers, counts, names), not the order in which a file holds them
(`gguf_parse.py`). Every refusal is a ModelError with the file, the field, the value and the limit.
"""

from engine.artifacts.gguf_types import U32, U64
from engine.artifacts.mapped_file import printable
from engine.errors import ModelError

SHOWN_NAME = 80


class Cursor:
    """Reads little-endian fields one after the other."""

    def __init__(self, data: memoryview, shown: str) -> None:
        self.data = data
        self.end = len(data)
        self.at = 0
        self.shown = shown

    def bad(self, what: str) -> ModelError:
        return ModelError(f"{self.shown}: {what}")

    def need(self, n_bytes: int, field: str) -> int:
        """Claim n_bytes and return where they begin."""
        left = self.end - self.at
        if n_bytes > left:
            raise self.bad(f"{field} takes {n_bytes} bytes, but {left} bytes are left in the file")
        start = self.at
        self.at += n_bytes
        return start

    def u32(self, field: str) -> int:
        return int(U32.unpack_from(self.data, self.need(U32.size, field))[0])

    def u64(self, field: str) -> int:
        return int(U64.unpack_from(self.data, self.need(U64.size, field))[0])

    def count(self, field: str, min_item_bytes: int, limit: int) -> int:
        count = self.u64(field)
        if count > limit:
            raise self.bad(f"{field} is {count}, at most {limit} are accepted")
        if count * min_item_bytes > self.end:
            raise self.bad(f"{field} is {count}, too many for a file of {self.end} bytes")
        return count

    def name(self, field: str, limit: int) -> str:
        """A key or tensor name: short, not empty, UTF-8, without NUL (C would cut it there)."""
        n_bytes = self.u64(f"{field} length")
        if not 1 <= n_bytes <= limit:
            raise self.bad(f"{field} has {n_bytes} bytes, the limits are 1 and {limit}")
        start = self.need(n_bytes, field)
        raw = bytes(self.data[start : self.at])
        try:
            text = raw.decode()
        except UnicodeDecodeError as e:
            found = printable(raw, SHOWN_NAME)
            raise self.bad(f"{field} {found} is not valid UTF-8 at byte {e.start}") from e
        if "\0" in text:
            raise self.bad(f"{field} {printable(raw, SHOWN_NAME)} contains a NUL")
        return text
