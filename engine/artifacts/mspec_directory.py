"""Owns the bytes of an .mspec header and directory: made from records, and checked back into them.

The format is described in `mspec_format.py`. The rule of reading: nothing that a file claims is
used, looped over or allocated before it was compared with the bytes there are and with the limits.
Every refusal is a ModelError with the file, the field, the value and the limit.
"""

import hashlib
import struct
from typing import NamedTuple

from engine.artifacts.mapped_file import printable
from engine.artifacts.mspec_format import (
    DTYPES,
    HEADER_BYTES,
    KINDS,
    LAYOUTS,
    MAGIC,
    MAX_DIMS,
    MAX_DIRECTORY_BYTES,
    MAX_NAME_BYTES,
    MAX_OBJECTS,
    VERSION,
    Identity,
    MspecObject,
    aligned,
    object_bytes,
    packed_text,
    weights_id,
)
from engine.errors import InvalidArgument, ModelError

DIGEST_BYTES = 32
_HEADER = struct.Struct("<9s3sIQQQQ32s")
_RECORD = struct.Struct("<QQ32sBBBBI")
_U32 = struct.Struct("<I")
_DIMS = [struct.Struct(f"<{n}Q") for n in range(MAX_DIMS + 1)]
_SHOWN_NAME = 80


class Directory(NamedTuple):
    """Everything but the data, checked."""

    identity: Identity
    objects: dict[str, MspecObject]


def pack_identity(identity: Identity) -> bytes:
    """The identity as it begins a directory."""
    return b"".join(
        (
            packed_text(identity.model_id),
            bytes.fromhex(identity.weights_id),
            packed_text(identity.recipe),
            bytes.fromhex(identity.recipe_sha256),
        )
    )


def pack_object(entry: MspecObject) -> bytes:
    """One record of a directory."""
    name = entry.name.encode()
    numbers = (
        KINDS.index(entry.kind) + 1,
        DTYPES.index(entry.dtype) + 1,
        LAYOUTS.index(entry.layout) + 1,
        len(entry.shape),
    )
    fixed = _RECORD.pack(
        entry.offset, entry.length, bytes.fromhex(entry.sha256), *numbers, len(name)
    )
    return fixed + _DIMS[len(entry.shape)].pack(*entry.shape) + name


def pack_header(directory: bytes, offset: int, n_objects: int) -> bytes:
    """The header of a file that ends with this directory at this offset."""
    digest = hashlib.sha256(directory).digest()
    n_bytes = offset + len(directory)
    places = (n_bytes, offset, len(directory), n_objects)
    return _sealed(_HEADER.pack(MAGIC, bytes(3), VERSION, *places, digest))


def read_directory(data: memoryview, shown: str) -> Directory:
    """Check the header and directory of a whole file; `shown` names the file in messages."""
    directory, n_objects = _directory_bytes(data, shown)
    reader = RecordReader(directory, shown)
    identity = reader.identity()
    objects: dict[str, MspecObject] = {}
    end = HEADER_BYTES
    for _ in range(n_objects):
        entry = reader.object(aligned(end))
        if entry.name in objects:
            raise reader.bad(f"object {printable(entry.name, _SHOWN_NAME)} occurs twice")
        objects[entry.name] = entry
        end = entry.offset + entry.length
    reader.finish()
    offset = len(data) - len(directory)
    if offset != aligned(end):
        raise reader.bad(f"directory at {offset}, the objects put it at {aligned(end)}")
    derived = weights_id(objects.values())
    if derived != identity.weights_id:
        raise reader.bad(f"weights_id {identity.weights_id} stored, {derived} by its tensors")
    return Directory(identity, objects)


def _directory_bytes(data: memoryview, shown: str) -> tuple[memoryview, int]:
    """The directory and its number of objects, after every check of the header."""

    def bad(what: str) -> ModelError:
        return ModelError(f"{shown}: {what}")

    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise bad(f"begins with {printable(bytes(data[:9]))}, not with {printable(MAGIC)}")
    if len(data) < HEADER_BYTES:
        raise bad(f"{len(data)} bytes, the header alone takes {HEADER_BYTES}")
    header = bytes(data[:HEADER_BYTES])
    _, zeros, version, n_bytes, offset, length, n_objects, digest = _HEADER.unpack_from(header)
    if version != VERSION:
        raise bad(f"format version {version}, this reader knows {VERSION}")
    if zeros != bytes(3) or header != _sealed(header[: _HEADER.size]):
        raise bad("header is damaged: its digest does not match, or bytes are set that are zero")
    if n_bytes != len(data):
        raise bad(f"{len(data)} bytes, the header says {n_bytes}")
    if n_objects > MAX_OBJECTS:
        raise bad(f"number of objects is {n_objects}, at most {MAX_OBJECTS} are accepted")
    if length > MAX_DIRECTORY_BYTES:
        raise bad(f"directory of {length} bytes, at most {MAX_DIRECTORY_BYTES} are accepted")
    if offset < HEADER_BYTES or offset + length != n_bytes:
        raise bad(f"directory of {length} bytes at {offset}, the file has {n_bytes} bytes")
    directory = data[offset:]
    if hashlib.sha256(directory).digest() != digest:
        raise bad("directory is damaged: its digest is not the one in the header")
    return directory, n_objects


def _sealed(fields: bytes) -> bytes:
    """Header bytes from its fields: with their digest, and zeros after it."""
    return (fields + hashlib.sha256(fields).digest()).ljust(HEADER_BYTES, b"\0")


class RecordReader:
    """Reads the parts of a directory one after the other, over bytes that are there."""

    def __init__(self, data: memoryview, shown: str) -> None:
        self._data = data
        self._shown = shown
        self._at = 0

    def bad(self, what: str) -> ModelError:
        return ModelError(f"{self._shown}: {what}")

    def identity(self) -> Identity:
        """The identity, its texts checked."""
        model_id = self._text("model_id", self._u32("length of model_id"))
        weights = self._take(DIGEST_BYTES, "weights_id").hex()
        recipe = self._text("recipe", self._u32("length of recipe"))
        return Identity(model_id, weights, recipe, self._take(DIGEST_BYTES, "recipe digest").hex())

    def object(self, expected_offset: int) -> MspecObject:
        """The next record; its offset must be the expected one, its length that of its shape."""
        fixed = self._take(_RECORD.size, "object record")
        offset, length, digest, kind, dtype, layout, n_dims, name_bytes = _RECORD.unpack(fixed)
        if n_dims > MAX_DIMS:
            raise self.bad(f"object with {n_dims} dimensions, at most {MAX_DIMS} are accepted")
        dims = _DIMS[n_dims]
        shape = dims.unpack(self._take(dims.size, "dimensions"))
        name = self._text("object name", name_bytes)
        known = 1 <= kind <= len(KINDS) and 1 <= dtype <= len(DTYPES)
        if not known or not 1 <= layout <= len(LAYOUTS):
            numbers = f"kind {kind}, dtype {dtype}, layout {layout}"
            raise self._of(name, f"{numbers}: the last known are 4, 6 and 3")
        entry = MspecObject(
            name, KINDS[kind - 1], DTYPES[dtype - 1], shape, LAYOUTS[layout - 1],
            offset, length, digest.hex(),
        )  # fmt: skip
        self._check_place(entry, expected_offset)
        return entry

    def finish(self) -> None:
        """Refuse bytes that no record accounts for."""
        left = len(self._data) - self._at
        if left:
            raise self.bad(f"{left} bytes of the directory are left after its last object")

    def _check_place(self, entry: MspecObject, expected_offset: int) -> None:
        try:
            expected = object_bytes(entry.kind, entry.dtype, entry.shape, entry.layout)
        except InvalidArgument as e:
            raise self._of(entry.name, str(e)) from e
        if entry.length != expected:
            raise self._of(entry.name, f"length {entry.length}, its shape takes {expected}")
        if entry.offset != expected_offset:
            raise self._of(entry.name, f"offset {entry.offset}, it belongs at {expected_offset}")

    def _of(self, name: str, what: str) -> ModelError:
        return self.bad(f"object {printable(name, _SHOWN_NAME)}: {what}")

    def _take(self, n_bytes: int, field: str) -> bytes:
        left = len(self._data) - self._at
        if n_bytes > left:
            raise self.bad(f"{field} takes {n_bytes} bytes, {left} are left in the directory")
        self._at += n_bytes
        return bytes(self._data[self._at - n_bytes : self._at])

    def _u32(self, field: str) -> int:
        return int(_U32.unpack(self._take(_U32.size, field))[0])

    def _text(self, field: str, n_bytes: int) -> str:
        if not 1 <= n_bytes <= MAX_NAME_BYTES:
            raise self.bad(f"{field} has {n_bytes} bytes, the limits are 1 and {MAX_NAME_BYTES}")
        raw = self._take(n_bytes, field)
        try:
            text = raw.decode()
        except UnicodeDecodeError as e:
            shown = printable(raw, _SHOWN_NAME)
            raise self.bad(f"{field} {shown} is not valid UTF-8 at byte {e.start}") from e
        if "\0" in text:
            raise self.bad(f"{field} {printable(raw, _SHOWN_NAME)} contains a NUL")
        return text
