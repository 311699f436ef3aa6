"""Owns the validation of a GGUF header: from bytes to checked pairs and tensor places.

Knows nothing of how a file is opened nor of what a tensor holds. The rule: nothing that the file
claims is used, looped over or allocated before it was compared with the bytes that are left and
with the limits of `gguf_types.py`. Every refusal is a ModelError with field, value and limit.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from engine.artifacts.ggml_types import GGML_TYPES
from engine.artifacts.gguf_cursor import SHOWN_NAME, Cursor
from engine.artifacts.gguf_types import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_ARRAY_DEPTH,
    MAX_ARRAY_STRINGS,
    MAX_DIMS,
    MAX_ELEMENTS,
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    MAX_NESTED_ARRAYS,
    MAX_PAIRS,
    MAX_TENSORS,
    MIN_ITEM_BYTES,
    SCALAR_BYTES,
    U32,
    U64,
    VERSION,
    GgufValue,
    ValueType,
)
from engine.artifacts.mapped_file import printable

_MIN_PAIR_BYTES = U64.size + 1 + U32.size + 1
_MIN_TENSOR_BYTES = U64.size + 1 + U32.size + U64.size + U32.size + U64.size

# Elements that are looked at one by one, over the whole file
_ITEM_LIMITS = {ValueType.STRING: MAX_ARRAY_STRINGS, ValueType.ARRAY: MAX_NESTED_ARRAYS}


class TensorPlace(NamedTuple):
    """Where a tensor lies: dims innermost first as stored, offset from the start of the file."""

    name: str
    dims: tuple[int, ...]
    ggml_type: int
    offset: int
    n_bytes: int


class Header(NamedTuple):
    """Everything in front of the data, checked."""

    metadata: dict[str, GgufValue]
    tensors: tuple[TensorPlace, ...]
    alignment: int


def parse_header(data: memoryview, shown: str) -> Header:
    """Read and check everything before the tensor data; `shown` names the file in messages."""
    return _Parser(data, shown).header()


class _Parser(Cursor):
    """Reads the header in file order."""

    def __init__(self, data: memoryview, shown: str) -> None:
        super().__init__(data, shown)
        self.n_items = dict.fromkeys(_ITEM_LIMITS, 0)

    def header(self) -> Header:
        self.preamble()
        n_tensors = self.count("tensor count", _MIN_TENSOR_BYTES, MAX_TENSORS)
        n_pairs = self.count("metadata pair count", _MIN_PAIR_BYTES, MAX_PAIRS)
        metadata = self.pairs(n_pairs)
        alignment = self.alignment(metadata)
        tensors = self.tensors(n_tensors, alignment)
        self.refuse_overlap(tensors)
        return Header(metadata, tensors, alignment)

    def preamble(self) -> None:
        magic = bytes(self.data[:4])
        if magic != MAGIC:
            raise self.bad(f"not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
        self.at = 4
        version = self.u32("version")
        if version == int.from_bytes(VERSION.to_bytes(4, "little"), "big"):
            raise self.bad(f"a big-endian GGUF file; only little-endian version {VERSION} is read")
        if version != VERSION:
            raise self.bad(f"GGUF version {version}; only version {VERSION} is read")

    def pairs(self, n_pairs: int) -> dict[str, GgufValue]:
        metadata: dict[str, GgufValue] = {}
        for index in range(n_pairs):
            key = self.name(f"key of metadata pair {index}", MAX_KEY_BYTES)
            field = f"metadata {printable(key, SHOWN_NAME)}"
            if key in metadata:
                raise self.bad(f"{field} occurs twice, again as pair {index}")
            kind = self.value_type(f"type of {field}")
            start = self.at
            self.skip_value(kind, field, 0)
            metadata[key] = GgufValue(kind, self.data[start : self.at])
        return metadata

    def value_type(self, field: str) -> ValueType:
        number = self.u32(field)
        if number not in ValueType._value2member_map_:
            raise self.bad(f"{field} is {number}, the highest known is {max(ValueType)}")
        return ValueType(number)

    def skip_value(self, kind: ValueType, field: str, depth: int) -> None:
        if kind == ValueType.ARRAY:
            self.skip_array(field, depth + 1)
        elif kind == ValueType.STRING:
            self.need(self.u64(f"length of {field}"), field)
        else:
            self.skip_scalars(kind, 1, field)

    def skip_scalars(self, kind: ValueType, count: int, field: str) -> None:
        start = self.need(SCALAR_BYTES[kind] * count, field)
        if kind == ValueType.BOOL and count:
            highest = int(np.frombuffer(self.data, np.uint8, count, start).max())
            if highest > 1:
                raise self.bad(f"{field} has a bool stored as {highest}, only 0 and 1 are bools")

    def skip_array(self, field: str, depth: int) -> None:
        """Depth is bounded, so this may recurse; so is the number of items looked at one by one."""
        if depth > MAX_ARRAY_DEPTH:
            raise self.bad(f"{field} nests arrays {depth} deep, the limit is {MAX_ARRAY_DEPTH}")
        kind = self.value_type(f"element type of {field}")
        count = self.u64(f"element count of {field}")
        left = self.end - self.at
        if count * MIN_ITEM_BYTES[kind] > left:
            raise self.bad(
                f"{field} claims {count} elements of {kind.name},"
                f" at most {left // MIN_ITEM_BYTES[kind]} fit in the {left} bytes left"
            )
        if kind in SCALAR_BYTES:
            self.skip_scalars(kind, count, field)
            return
        self.n_items[kind] += count
        if self.n_items[kind] > _ITEM_LIMITS[kind]:
            raise self.bad(
                f"{field} with {count} elements of {kind.name} brings the file to"
                f" {self.n_items[kind]} of them, the limit is {_ITEM_LIMITS[kind]}"
            )
        if kind == ValueType.STRING:
            self.skip_strings(count, field)
            return
        for _ in range(count):
            self.skip_array(field, depth + 1)

    def skip_strings(self, count: int, field: str) -> None:
        """Written out with locals: this loop is most of the time of opening a real model."""
        length_at, data, at, last = U64.unpack_from, self.data, self.at, self.end - U64.size
        for index in range(count):
            if at > last:
                raise self.bad(
                    f"{field} element {index} of {count} has its length past the end of the file"
                )
            n_bytes = length_at(data, at)[0]
            at += 8
            if n_bytes > self.end - at:
                raise self.bad(
                    f"{field} element {index} takes {n_bytes} bytes,"
                    f" but {self.end - at} bytes are left in the file"
                )
            at += n_bytes
        self.at = at

    def alignment(self, metadata: dict[str, GgufValue]) -> int:
        stored = metadata.get(ALIGNMENT_KEY)
        if stored is None:
            return DEFAULT_ALIGNMENT
        if stored.type != ValueType.UINT32:
            raise self.bad(f"{ALIGNMENT_KEY} has type {stored.type.name}, it must be UINT32")
        alignment = int(stored.value)
        if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self.bad(
                f"{ALIGNMENT_KEY} is {alignment}, it must be a power of two up to {MAX_ALIGNMENT}"
            )
        return alignment

    def tensors(self, n_tensors: int, alignment: int) -> tuple[TensorPlace, ...]:
        places: dict[str, TensorPlace] = {}
        for index in range(n_tensors):
            place = self.tensor(index, alignment)
            if place.name in places:
                raise self.bad(f"tensor {printable(place.name)} occurs twice, again as {index}")
            places[place.name] = place
        data_start = -(-self.at // alignment) * alignment
        return tuple(self.placed(place, data_start) for place in places.values())

    def tensor(self, index: int, alignment: int) -> TensorPlace:
        """One tensor record; the offset is still the stored one, from the start of the data."""
        name = self.name(f"name of tensor {index}", MAX_NAME_BYTES)
        field = f"tensor {printable(name)}"
        n_dims = self.u32(f"dimension count of {field}")
        if not 1 <= n_dims <= MAX_DIMS:
            raise self.bad(f"{field} has {n_dims} dimensions, the limits are 1 and {MAX_DIMS}")
        dims = tuple(self.u64(f"dimension {i} of {field}") for i in range(n_dims))
        ggml_type = self.u32(f"type of {field}")
        offset = self.u64(f"offset of {field}")
        n_bytes = self.tensor_bytes(field, dims, ggml_type)
        if offset % alignment:
            raise self.bad(f"{field} has offset {offset}, not a multiple of {alignment}")
        return TensorPlace(name, dims, ggml_type, offset, n_bytes)

    def tensor_bytes(self, field: str, dims: tuple[int, ...], ggml_type: int) -> int:
        if 0 in dims:
            raise self.bad(f"{field} has dimensions {dims}, each must be at least 1")
        n_elements = math.prod(dims)
        if n_elements > MAX_ELEMENTS:
            raise self.bad(f"{field} has {n_elements} elements, the limit is {MAX_ELEMENTS}")
        if ggml_type not in GGML_TYPES:
            raise self.bad(f"{field} has type {ggml_type}, the highest known is {max(GGML_TYPES)}")
        kind = GGML_TYPES[ggml_type]
        if dims[0] % kind.block_elements:
            raise self.bad(
                f"{field} has rows of {dims[0]} elements,"
                f" {kind.name} needs a multiple of {kind.block_elements}"
            )
        return n_elements // kind.block_elements * kind.block_bytes

    def placed(self, place: TensorPlace, data_start: int) -> TensorPlace:
        offset = data_start + place.offset
        if offset + place.n_bytes > self.end:
            raise self.bad(
                f"tensor {printable(place.name)} ends at byte {offset + place.n_bytes},"
                f" the file has {self.end} bytes"
            )
        return place._replace(offset=offset)

    def refuse_overlap(self, tensors: tuple[TensorPlace, ...]) -> None:
        in_order = sorted(tensors, key=lambda place: place.offset)
        for before, after in pairwise(in_order):
            if before.offset + before.n_bytes > after.offset:
                raise self.bad(
                    f"tensor {printable(after.name)} begins at byte {after.offset}, inside tensor"
                    f" {printable(before.name)} which ends at {before.offset + before.n_bytes}"
                )
