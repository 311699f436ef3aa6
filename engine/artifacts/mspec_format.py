"""Owns the .mspec file format, version 1: what a file holds, and how long each object is.

Holds placed tensors and texts of one model with their digests; says nothing of how they are run.
Reading is in `mspec.py` and `mspec_directory.py`, writing in `mspec_writer.py`. All integers are
unsigned and little-endian; offsets count from the start of the file; digests are SHA-256.

    header      256 bytes
                0    magic "MESHSPEC" and a zero byte, then 3 zero bytes
                12   u32 version, 1
                16   u64 length of the file
                24   u64 offset of the directory
                32   u64 length of the directory, at most 16 MiB
                40   u64 number of objects, at most 32,768
                48   digest of the directory
                80   digest of the 80 bytes before it
                112  zeros
    objects     the first at 256, each next one at the first multiple of 256 after the one before;
                zeros between them
    directory   at the first multiple of 256 after the last object; the file ends with it
                identity: text model_id, digest weights_id, text recipe, digest of the recipe
                then one record for each object, in the order of the objects
                0    u64 offset
                8    u64 length
                16   digest of the object
                48   u8 kind, u8 dtype, u8 layout, u8 number of dimensions, as numbered below
                52   u32 bytes of the name
                56   u64 for each dimension, outermost first; then the name

A text is a u32 length and that many bytes of UTF-8, 1 to 256, without NUL; so is a name, and no two
objects have the same. Dimensions are 1 to 8, each at least 1. The directory comes last so that a
writer can stream; its place and digest are in the header, which has its own digest.

kinds    1 tensor   a weight
         2 text     UTF-8 (a chat template)     3 json   UTF-8 (config, tokenizer)     4 blob
         kinds 2 to 4 have dtype u8, layout row_major, shape [bytes]; 2 and 3 take at most 64 MiB
dtypes   1 f32, 2 f16, 3 bf16, 4 u8, 5 int8, 6 int4
layouts  1 row_major                          f32, f16, bf16; last dimension contiguous
         2 int8_symmetric_group_bf16_scale    int8 [N, K]: N K bytes of codes, then the scales
         3 int4_symmetric_group_bf16_scale    int4 [N, K]: N K / 2 bytes of codes, then the scales
         Scales are BF16 [N, K / 128]. Since N is a multiple of 8 and K of 128, they begin at a
         multiple of 256 like every object does. Codes: `int8_group.py`, `int4_group128.py`.

weights_id is the digest of: "mspec-weights-1" and a line feed; u64 number of tensors; then for each
tensor, sorted by the bytes of its name: text name, text dtype, u64 number of dimensions, each as
u64, text layout, digest. Text objects, order, offsets and recipe do not count.

A flipped byte: in the header or directory, refused when the file is opened; in an object or in the
zeros after it, found when the object is verified. Zeros after an object are not read otherwise.
"""

import hashlib
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from engine.artifacts.group_codes import GroupFormat
from engine.artifacts.int4_group128 import INT4
from engine.artifacts.int8_group import INT8
from engine.artifacts.mapped_file import printable
from engine.errors import InvalidArgument

MAGIC = b"MESHSPEC\0"
VERSION = 1
ALIGNMENT = 256
HEADER_BYTES = 256
# A file that a writer has not finished has a journal of its own name and this beside it.
JOURNAL_SUFFIX = b".journal"
MAX_OBJECTS = 32_768
MAX_DIRECTORY_BYTES = 16 << 20
MAX_DIMS = 8
MAX_NAME_BYTES = 256
MAX_TEXT_BYTES = 64 << 20
# Far beyond any disk, and products of lengths stay within 64 bits.
MAX_OBJECT_BYTES = 1 << 48

_TITLE = b"mspec-weights-1\n"
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_HEX_DIGEST = re.compile("[0-9a-f]{64}")


class Kind(StrEnum):
    """What an object is for."""

    TENSOR = "tensor"
    TEXT = "text"
    JSON = "json"
    BLOB = "blob"


class DType(StrEnum):
    """What one element is."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    U8 = "u8"
    INT8 = "int8"
    INT4 = "int4"


class Layout(StrEnum):
    """How the elements lie in the object."""

    ROW_MAJOR = "row_major"
    INT8_GROUP = INT8.name
    INT4_GROUP = INT4.name


# In the order of their numbers in a file, from 1.
KINDS, DTYPES, LAYOUTS = tuple(Kind), tuple(DType), tuple(Layout)

GROUP_FORMATS: dict[str, GroupFormat] = {DType.INT8: INT8, DType.INT4: INT4}
ELEMENT_BYTES: dict[str, int] = {DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.U8: 1}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a writer is told: the model, and the recipe with the hex digest of its text."""

    model_id: str
    recipe: str
    recipe_sha256: str

    def check(self) -> None:
        """InvalidArgument for what a file cannot hold."""
        check_text("model_id", self.model_id)
        check_text("recipe", self.recipe)
        if not _HEX_DIGEST.fullmatch(self.recipe_sha256):
            raise InvalidArgument(
                f"recipe_sha256 {printable(self.recipe_sha256, 80)} is not 64 hex digits"
            )


@dataclass(frozen=True, slots=True)
class Identity:
    """What a file says it is; both digests in hex."""

    model_id: str
    weights_id: str
    recipe: str
    recipe_sha256: str


class MspecObject(NamedTuple):
    """One entry of the directory: `shape` outermost first, `length` in bytes, `sha256` in hex."""

    name: str
    kind: Kind
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    offset: int
    length: int
    sha256: str


def layout_of(dtype: str) -> Layout:
    """The layout that goes with a dtype."""
    found = GROUP_FORMATS.get(dtype)
    return Layout(found.name) if found else Layout.ROW_MAJOR


def aligned(offset: int) -> int:
    """The first multiple of 256 from `offset` on."""
    return offset + -offset % ALIGNMENT


def object_bytes(kind: str, dtype: str, shape: Sequence[int], layout: str) -> int:
    """Length that an object of this declaration has; InvalidArgument where no file may hold it."""
    dims = tuple(shape)
    if not 1 <= len(dims) <= MAX_DIMS or min(dims) < 1:
        raise InvalidArgument(
            f"shape {_shown(dims)}: 1 to {MAX_DIMS} dimensions from 1 on are held"
        )
    is_tensor = kind == Kind.TENSOR
    if kind not in KINDS or dtype not in DTYPES or is_tensor == (dtype == DType.U8):
        raise InvalidArgument(f"{kind} of {dtype}: there is no such object")
    if layout != layout_of(dtype):
        raise InvalidArgument(f"{dtype} in layout {layout}: it is kept as {layout_of(dtype)}")
    n_bytes = _data_bytes(dtype, dims)
    limit = MAX_TEXT_BYTES if kind in (Kind.TEXT, Kind.JSON) else MAX_OBJECT_BYTES
    if n_bytes > limit:
        raise InvalidArgument(f"shape {_shown(dims)} of {dtype} is more than {limit} bytes")
    if not is_tensor and len(dims) != 1:
        raise InvalidArgument(f"{kind} of shape {_shown(dims)}: it has one dimension, its bytes")
    return n_bytes


def _data_bytes(dtype: str, dims: tuple[int, ...]) -> int:
    grouped = GROUP_FORMATS.get(dtype)
    if grouped is None:
        return math.prod(dims) * ELEMENT_BYTES[dtype]
    grouped.check_shape(dims)
    return grouped.codes_bytes(dims) + grouped.scales_bytes(dims)


def check_text(what: str, text: str, limit: int = MAX_NAME_BYTES) -> bytes:
    """The UTF-8 of a name or identity; InvalidArgument when a file cannot hold it."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as e:
        raise InvalidArgument(f"{what} {printable(text, 80)} is not text: {e.reason}") from e
    if not 1 <= len(raw) <= limit or b"\0" in raw:
        raise InvalidArgument(
            f"{what} {printable(text, 80)} has {len(raw)} bytes; it needs 1 to {limit} and no NUL"
        )
    return raw


def packed_text(text: str) -> bytes:
    """A text as files and digests hold it."""
    raw = text.encode()
    return _U32.pack(len(raw)) + raw


def weights_id(objects: Iterable[MspecObject]) -> str:
    """Hex digest of the weights among the objects, as the format says."""
    tensors = sorted((o for o in objects if o.kind == Kind.TENSOR), key=lambda o: o.name.encode())
    digest = hashlib.sha256(_TITLE + _U64.pack(len(tensors)))
    for t in tensors:
        dims = b"".join(map(_U64.pack, (len(t.shape), *t.shape)))
        digest.update(packed_text(t.name) + packed_text(t.dtype) + dims + packed_text(t.layout))
        digest.update(bytes.fromhex(t.sha256))
    return digest.hexdigest()


def _shown(dims: tuple[int, ...]) -> str:
    """Dimensions for a message, however many and large."""
    return printable(str(list(dims[: MAX_DIMS + 1])), 200).strip("'")
