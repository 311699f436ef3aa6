"""Owns the rules by which a GGUF header is read from a descriptor, version 2 or 3, and its limits.

It must not know what the file is for. The engine's parser (`engine/artifacts/gguf_parse.py`) has
tighter limits, one version and no kinds, and reads what it will run; this one judges files of
strangers and keeps every pair's exact bytes.
"""

import math
import struct
from itertools import pairwise
from typing import NamedTuple

from engine.artifacts.ggml_types import GGML_TYPES
from engine.artifacts.gguf_types import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    U32,
    U64,
    ValueType,
)
from engine.artifacts.mapped_file import printable
from packages.layer_package.fragment_cursor import SHOWN_NAME, Cursor

VERSIONS = (2, 3)
MAX_COUNT = 1_000_000
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 255
MIN_ALIGNMENT, MAX_ALIGNMENT = 8, 65_536
MAX_TENSOR_BYTES = 2**63 - 1
_MIN_POOLED_BYTES = 256


class RawPair(NamedTuple):
    """A metadata pair: its value's type, and its bytes exactly as the file holds them."""

    key: str
    type: ValueType
    payload: bytes


class FragmentTensor(NamedTuple):
    """A tensor: dims innermost first as stored, offset from the start of the file, n_bytes of data
    without padding."""

    name: str
    dims: tuple[int, ...]
    ggml_type: int
    offset: int
    n_bytes: int


class Parsed(NamedTuple):
    """A checked header; `header_bytes` without the padding before the data."""

    version: int
    pairs: tuple[RawPair, ...]
    tensors: tuple[FragmentTensor, ...]
    alignment: int
    header_bytes: int


def parse(fd: int, n_bytes: int, artifact: str, pool: dict[bytes, bytes] | None = None) -> Parsed:
    """Read the header of a file of `n_bytes`. GgufError by the rules, OSError from the system.

    `pool` holds large values that were read before, and gets those of this file.
    """
    return _Reader(fd, n_bytes, artifact, {} if pool is None else pool).parsed()


class _Reader(Cursor):
    """Reads the header in file order."""

    def __init__(self, fd: int, n_bytes: int, artifact: str, pool: dict[bytes, bytes]) -> None:
        super().__init__(fd, n_bytes, artifact)
        self.pool = pool

    def parsed(self) -> Parsed:
        version = self.preamble()
        n_tensors = self.count("tensor count")
        n_pairs = self.count("key/value count")
        pairs = self.pairs(n_pairs)
        alignment = self.alignment(pairs)
        tensors = self.tensors(n_tensors, alignment)
        self.refuse_overlap(tensors)
        return Parsed(version, tuple(pairs.values()), tensors, alignment, self.at)

    def preamble(self) -> int:
        n_magic = min(len(MAGIC), self.end)
        start = self.need(n_magic, "magic")
        magic = bytes(self.data[start : start + n_magic])
        if magic != MAGIC:
            raise self.bad("gguf_bad_magic", f"it begins with {magic!r}, not {MAGIC!r}")
        version = self.u32("version")
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *VERSIONS):
            raise self.bad(
                "unsupported_gguf_endianness", "a big-endian file; only little-endian ones are read"
            )
        if version not in VERSIONS:
            raise self.bad("unsupported_gguf_version", f"version {version}; 2 and 3 are read")
        return version

    def count(self, field: str) -> int:
        return self.limited(field, MAX_COUNT)

    def pairs(self, n_pairs: int) -> dict[str, RawPair]:
        pairs: dict[str, RawPair] = {}
        for index in range(n_pairs):
            key = self.name(f"key {index}", MAX_KEY_BYTES)
            field = printable(key, SHOWN_NAME)
            if key in pairs:
                raise self.bad("gguf_duplicate_key", f"{field} occurs again as pair {index}")
            kind = self.value_type(f"type of {field}")
            pairs[key] = RawPair(key, kind, self.payload(key, kind, field))
        return pairs

    def payload(self, key: str, kind: ValueType, field: str) -> bytes:
        """A value's bytes; those of the pool where the file goes on with them.

        A value says itself where it ends: bytes that were one sound value are one here too.
        """
        tag = b"%d %s" % (kind, key.encode())
        known = self.pool.get(tag)
        if known is not None and self.goes_on_with(known, field):
            self.at += len(known)
            return known
        start = self.at
        self.skip_value(kind, field)
        payload = self.taken(start)
        if len(payload) >= _MIN_POOLED_BYTES:
            self.pool[tag] = payload
        return payload

    def alignment(self, pairs: dict[str, RawPair]) -> int:
        stored = pairs.get(ALIGNMENT_KEY)
        if stored is None:
            return DEFAULT_ALIGNMENT
        if stored.type != ValueType.UINT32:
            raise self.bad(
                "gguf_bad_alignment", f"{ALIGNMENT_KEY} is a {stored.type.name}, it must be UINT32"
            )
        alignment = int(U32.unpack(stored.payload)[0])
        if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self.bad(
                "gguf_bad_alignment",
                f"{ALIGNMENT_KEY} is {alignment}, it must be a power of two from {MIN_ALIGNMENT}"
                f" to {MAX_ALIGNMENT}",
            )
        return alignment

    def tensors(self, n_tensors: int, alignment: int) -> tuple[FragmentTensor, ...]:
        found: dict[str, FragmentTensor] = {}
        for index in range(n_tensors):
            tensor = self.tensor(index, alignment)
            if tensor.name in found:
                shown = printable(tensor.name, SHOWN_NAME)
                raise self.bad("gguf_duplicate_tensor", f"{shown} occurs again as tensor {index}")
            found[tensor.name] = tensor
        data_start = -(-self.at // alignment) * alignment
        return tuple(self.placed(tensor, data_start) for tensor in found.values())

    def tensor(self, index: int, alignment: int) -> FragmentTensor:
        """One record; the offset is still the stored one, from the start of the data."""
        name = self.name(f"name of tensor {index}", MAX_NAME_BYTES)
        field = f"tensor {printable(name, SHOWN_NAME)}"
        n_dims = self.u32(f"dimension count of {field}")
        if not 1 <= n_dims <= MAX_DIMS:
            raise self.bad(
                "gguf_bad_shape",
                f"{field} has {n_dims} dimensions, the limits are 1 and {MAX_DIMS}",
            )
        start = self.need(U64.size * n_dims + U32.size + U64.size, f"record of {field}")
        *dims, ggml_type, offset = struct.unpack_from(f"<{n_dims}QIQ", self.data, start)
        n_bytes = self.tensor_bytes(field, tuple(dims), ggml_type)
        if offset % alignment:
            raise self.bad(
                "gguf_bad_offset", f"{field} has offset {offset}, no multiple of {alignment}"
            )
        return FragmentTensor(name, tuple(dims), ggml_type, offset, n_bytes)

    def tensor_bytes(self, field: str, dims: tuple[int, ...], ggml_type: int) -> int:
        kind = GGML_TYPES.get(ggml_type)
        if kind is None:
            raise self.bad(
                "gguf_unknown_type",
                f"{field} has type {ggml_type}, the highest known is {max(GGML_TYPES)}",
            )
        n_elements = math.prod(dims)
        n_bytes = n_elements // kind.block_elements * kind.block_bytes
        if n_elements == 0 or dims[0] % kind.block_elements:
            raise self.bad(
                "gguf_bad_shape",
                f"{field} has dimensions {dims}; each must be at least 1 and the first a multiple"
                f" of the {kind.block_elements} of {kind.name}",
            )
        if max(n_elements, n_bytes) > MAX_TENSOR_BYTES:
            raise self.bad(
                "gguf_bad_shape",
                f"{field} has {n_elements} elements in {n_bytes} bytes,"
                f" the limit is {MAX_TENSOR_BYTES}",
            )
        return n_bytes

    def placed(self, tensor: FragmentTensor, data_start: int) -> FragmentTensor:
        offset = data_start + tensor.offset
        if offset + tensor.n_bytes > self.end:
            raise self.bad(
                "gguf_truncated",
                f"tensor {printable(tensor.name, SHOWN_NAME)} ends at byte"
                f" {offset + tensor.n_bytes}, the file has {self.end}",
            )
        return tensor._replace(offset=offset)

    def refuse_overlap(self, tensors: tuple[FragmentTensor, ...]) -> None:
        for before, after in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
            if before.offset + before.n_bytes > after.offset:
                raise self.bad(
                    "gguf_overlapping_tensors",
                    f"tensor {printable(after.name, SHOWN_NAME)} begins inside"
                    f" {printable(before.name, SHOWN_NAME)}, at byte {after.offset}",
                )
