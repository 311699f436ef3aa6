"""Owns reading a safetensors file: its header checked, its float tensors by rows of the mapping.

Knows nothing of models. The format: a u64 length, that many bytes of JSON, then the data. The JSON
maps each name to {dtype, shape, data_offsets [begin, end) in the data}, and `__metadata__` to
texts. All little-endian. The data must be covered exactly, without gap, overlap or rest, so that
two readers cannot see different weights. Every refusal is a ModelError with file, field, value and
limit.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.artifacts.mapped_file import MappedFile, PathLike, printable
from engine.artifacts.row_blocks import forget, row_ranges
from engine.artifacts.strict_json import parse_json
from engine.errors import InvalidArgument, ModelError

MAX_HEADER_BYTES = 8 << 20
MAX_TENSORS = 32_768
MAX_DIMS = 8
MAX_ELEMENTS = 2**63 - 1
MAX_NAME_BYTES = 256
METADATA = "__metadata__"
_LENGTH_BYTES = 8
_FIELDS = {"dtype", "shape", "data_offsets"}

# Bytes of one element.
DTYPES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}
# What rows are read as; uint16 stands for the bits of BF16, which numpy has not.
FLOATS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One tensor of an open file: `shape` outermost first, `offset` from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int
    file: MappedFile

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        """The tensor's rows [n, *shape[1:]] in order: float32, float16, or uint16 = BF16 bits.

        Views of the mapping, each good until the next is asked for. InvalidArgument for a dtype
        that is not in `FLOATS` and for a scalar.
        """
        if self.dtype not in FLOATS or not self.shape:
            raise InvalidArgument(f"tensor {printable(self.name)}: {self.dtype} {self.shape}")
        row_bytes = math.prod(self.shape[1:]) * DTYPES[self.dtype]
        for start, stop in row_ranges(self.shape[0], row_bytes):
            first, last = self.offset + start * row_bytes, self.offset + stop * row_bytes
            rows = np.frombuffer(self.file.view[first:last], FLOATS[self.dtype])
            yield rows.reshape(stop - start, *self.shape[1:])
            forget(self.file.view, first, last)


class SafetensorsFile:
    """An open file: `tensors` by name in the order of their data, `header_sha256` in hex."""

    def __init__(self, path: PathLike) -> None:
        """Map and check the file; ModelError when it is not sound."""
        self.file = MappedFile(path)
        self.shown = self.file.shown
        header = self._header()
        self.header_sha256 = hashlib.sha256(header).hexdigest()
        self.tensors = self._tensors(parse_json(header, f"{self.shown}: header"), len(header))

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()

    def _bad(self, what: str) -> ModelError:
        return ModelError(f"{self.shown}: {what}")

    def _header(self) -> bytes:
        view, n_bytes = self.file.view, self.file.n_bytes
        if n_bytes < _LENGTH_BYTES:
            raise self._bad(f"not a safetensors file: {n_bytes} bytes, the length alone takes 8")
        length = int.from_bytes(view[:_LENGTH_BYTES], "little")
        if length > MAX_HEADER_BYTES:
            raise self._bad(f"header length is {length}, the limit is {MAX_HEADER_BYTES}")
        if length > n_bytes - _LENGTH_BYTES:
            left = n_bytes - _LENGTH_BYTES
            raise self._bad(f"header length is {length}, but {left} bytes are left in the file")
        header = bytes(view[_LENGTH_BYTES : _LENGTH_BYTES + length])
        if not header.startswith(b"{"):
            raise self._bad("not a safetensors file: its header does not begin with '{'")
        return header

    def _tensors(self, header: Any, header_bytes: int) -> dict[str, SafetensorsTensor]:
        self._check_metadata(header.pop(METADATA, {}))
        if len(header) > MAX_TENSORS:
            raise self._bad(f"{len(header)} tensors, the limit is {MAX_TENSORS}")
        data_start = _LENGTH_BYTES + header_bytes
        placed = [self._tensor(name, entry, data_start) for name, entry in header.items()]
        placed.sort(key=lambda tensor: (tensor.offset, tensor.n_bytes))
        end = data_start
        for tensor in placed:
            if tensor.offset != end:
                fault = "overlaps the one before" if tensor.offset < end else "leaves a gap"
                raise self._bad(
                    f"tensor {printable(tensor.name)} begins at data byte"
                    f" {tensor.offset - data_start}, not {end - data_start}: it {fault}"
                )
            end += tensor.n_bytes
        if end != self.file.n_bytes:
            raise self._bad(f"tensors end at byte {end} of a file of {self.file.n_bytes}")
        return {tensor.name: tensor for tensor in placed}

    def _check_metadata(self, metadata: Any) -> None:
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise self._bad(f"{METADATA} is not a map of texts")

    def _tensor(self, name: str, entry: Any, data_start: int) -> SafetensorsTensor:
        what = f"tensor {printable(name, 80)}"
        try:
            n_name = len(name.encode())
        except UnicodeEncodeError as e:
            raise self._bad(f"{what}: its name is not text") from e
        if not 1 <= n_name <= MAX_NAME_BYTES or "\0" in name:
            raise self._bad(f"{what}: its name needs 1 to {MAX_NAME_BYTES} bytes and no NUL")
        if not isinstance(entry, dict) or set(entry) != _FIELDS:
            raise self._bad(f"{what}: its entry is not just dtype, shape and data_offsets")
        dtype = entry["dtype"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise self._bad(f"{what}: unknown dtype {printable(str(dtype), 40)}")
        shape = self._numbers(entry["shape"], f"{what}: shape", MAX_DIMS)
        if math.prod(shape) > MAX_ELEMENTS:
            raise self._bad(f"{what}: shape {list(shape)} has more than {MAX_ELEMENTS} elements")
        offsets = self._numbers(entry["data_offsets"], f"{what}: data_offsets", 2)
        n_bytes = math.prod(shape) * DTYPES[dtype]
        if len(offsets) != 2 or offsets[1] - offsets[0] != n_bytes:
            raise self._bad(
                f"{what}: data_offsets {list(offsets)}, but {dtype} {list(shape)}"
                f" takes {n_bytes} bytes"
            )
        if data_start + offsets[1] > self.file.n_bytes:
            raise self._bad(
                f"{what}: ends at data byte {offsets[1]}, but the file has"
                f" {self.file.n_bytes - data_start} bytes of data"
            )
        return SafetensorsTensor(name, dtype, shape, data_start + offsets[0], n_bytes, self.file)

    def _numbers(self, found: Any, what: str, limit: int) -> tuple[int, ...]:
        is_list = isinstance(found, list) and len(found) <= limit
        if not is_list or not all(type(n) is int and 0 <= n <= MAX_ELEMENTS for n in found):
            raise self._bad(
                f"{what} is {printable(str(found), 80)}, not at most {limit} numbers from 0 on"
            )
        return tuple(found)
