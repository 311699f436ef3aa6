"""Owns the safetensors container: a bounds-checked reader and a streaming writer.

Format: 8 bytes little-endian header length, a JSON header (name -> dtype, shape, data_offsets),
then the data without gaps. Only the three float types of the model family are read. It must not
know model names.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from reference.bf16 import from_bits, to_bits
from reference.errors import OracleError

Array = npt.NDArray[Any]

MAX_HEADER_BYTES = 100 << 20
MAX_DIMENSIONS = 8

Codec = tuple[np.dtype[Any], Callable[[Array], Array], Callable[[Array], Array]]
# dtype word -> (stored dtype, stored -> values, float64 values -> stored).
CODECS: dict[str, Codec] = {
    "BF16": (np.dtype("<u2"), from_bits, to_bits),
    "F16": (np.dtype("<f2"), lambda x: x, lambda x: x.astype("<f2")),
    "F32": (np.dtype("<f4"), lambda x: x, lambda x: x.astype("<f4")),
}


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in its file: absolute byte offset, dtype word and shape."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class SafetensorsFile:
    """One file, mapped; the header is checked whole before any tensor can be read."""

    def __init__(self, path: Path) -> None:
        """OracleError when the file is unreadable or its header contradicts its length."""
        self.path = path
        try:
            self._data = np.memmap(path, np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise OracleError(f"{path.name}: {error}") from error
        self.entries = self._directory()

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Rows start..stop of a tensor, float64; OracleError names one that is not finite."""
        entry = self.entries[name]
        stored, decode, _ = CODECS[entry.dtype]
        width = math.prod(entry.shape[1:]) * stored.itemsize
        words = self._data[entry.offset + start * width : entry.offset + stop * width].view(stored)
        values = decode(words).astype(np.float64).reshape(-1, *entry.shape[1:])
        if not np.isfinite(values).all():
            place = f"{self.path.name}: tensor {name}"
            raise OracleError(f"{place} has NaN or Inf in rows {start}..{stop}")
        return values

    def _directory(self) -> dict[str, Entry]:
        total = self._data.size
        length = int.from_bytes(self._data[:8].tobytes(), "little")
        if total < 8 or length > min(MAX_HEADER_BYTES, total - 8):
            raise OracleError(f"{self.path.name}: header of {length} bytes in a file of {total}")
        try:
            text = self._data[8 : 8 + length].tobytes().decode()
            header = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise OracleError(f"{self.path.name}: header is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise OracleError(f"{self.path.name}: header is {type(header).__name__}, not an object")
        spans, entries = [], {}
        for name, fields in header.items():
            if name == "__metadata__":
                continue
            entry, begin, end = self._entry(name, fields, 8 + length)
            entries[name] = entry
            spans.append((begin, end, name))
        at = 0
        for begin, end, name in sorted(spans):
            if begin != at:
                raise OracleError(f"{self.path.name}: {name} starts at {begin}, expected {at}")
            at = end
        if at != total - 8 - length:
            raise OracleError(f"{self.path.name}: {at} bytes described, {total - 8 - length} there")
        return entries

    def _entry(self, name: str, fields: Any, base: int) -> tuple[Entry, int, int]:
        shown = f"{self.path.name}: tensor {name}"
        try:
            dtype, shape, (begin, end) = fields["dtype"], fields["shape"], fields["data_offsets"]
            whole = [*shape, begin, end]
        except (KeyError, TypeError, ValueError) as error:
            raise OracleError(f"{shown}: malformed entry") from error
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in whole):
            raise OracleError(f"{shown}: shape {shape}, offsets {begin}, {end} are not all counts")
        if not isinstance(dtype, str) or dtype not in CODECS:
            raise OracleError(f"{shown}: dtype {dtype!r} is not one of {', '.join(CODECS)}")
        if not 1 <= len(shape) <= MAX_DIMENSIONS or 0 in shape:
            raise OracleError(f"{shown}: shape {shape}, want 1..{MAX_DIMENSIONS} axes, none empty")
        expected = math.prod(shape) * CODECS[dtype][0].itemsize
        if end - begin != expected or base + end > self._data.size:
            raise OracleError(f"{shown}: bytes {begin}..{end}, want {expected} within the file")
        return Entry(dtype, tuple(shape), base + begin), begin, end


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is written twice")
    return found


def encode(values: Array, dtype: str) -> bytes:
    """Float64 values -> stored bytes of a dtype word; OracleError for an unknown word."""
    if dtype not in CODECS:
        raise OracleError(f"dtype {dtype!r} is not one of {', '.join(CODECS)}")
    return np.ascontiguousarray(CODECS[dtype][2](values)).tobytes()


def stored_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of one tensor in a file."""
    if dtype not in CODECS:
        raise OracleError(f"dtype {dtype!r} is not one of {', '.join(CODECS)}")
    return math.prod(shape) * CODECS[dtype][0].itemsize


def write(
    path: Path,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    pieces: Callable[[str], Iterator[bytes]],
) -> None:
    """One file of tensors (name -> dtype word, shape), `pieces(name)` yielding each one's bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + stored_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # Padded so that data begins on 8 bytes, as readers that map the file expect.
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in tensors:
            _copy(file, pieces(name))


def _copy(file: BinaryIO, pieces: Iterator[bytes]) -> None:
    for piece in pieces:
        file.write(piece)
