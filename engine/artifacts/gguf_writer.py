"""Owns writing GGUF version 3 files: streaming, in bounded memory, whole or not at all.

Knows nothing of models. Tensor data starts at the alignment and each tensor is zero-padded to it.
Same inputs give the same bytes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from engine.artifacts import ggml_types, quants
from engine.artifacts.ggml_types import GGML_TYPES, type_label
from engine.artifacts.gguf import GgufFile, GgufTensor
from engine.artifacts.gguf_types import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_DIMS,
    MAX_ELEMENTS,
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    MAX_PAIRS,
    MAX_TENSORS,
    U32,
    U64,
    VERSION,
    Encoded,
    GgufValue,
    ValueType,
)
from engine.artifacts.mapped_file import PathLike, printable
from engine.artifacts.output_file import new_file, refuse_input_as_output
from engine.errors import InvalidArgument

Pair = tuple[str, GgufValue]
Chunk = Encoded | npt.NDArray[Any]

_FILE_TYPE_KEY = "general.file_type"
_ALL_F32 = 0


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor to write. `dims` innermost first; `chunks` together are its `n_bytes` of data.

    The chunks are asked for once, in order, when the tensor is written.
    """

    name: str
    dims: tuple[int, ...]
    ggml_type: int
    n_bytes: int
    chunks: Iterable[Chunk]

    @classmethod
    def copy_of(cls, tensor: GgufTensor) -> "TensorSource":
        """The tensor as it is in its file."""
        data = (tensor.raw(),)
        return cls(tensor.name, tensor.dims, tensor.ggml_type, tensor.n_bytes, data)

    @classmethod
    def from_array(cls, name: str, x: npt.NDArray[Any], ggml_type: int) -> "TensorSource":
        """An array of at least one dimension, encoded as `quants.encode` does."""
        data = quants.encode(x, ggml_type)
        return cls(name, x.shape[::-1], ggml_type, len(data), (data,))


def write_gguf(
    path: PathLike,
    metadata: Sequence[Pair],
    tensors: Sequence[TensorSource],
    alignment: int = DEFAULT_ALIGNMENT,
) -> None:
    """Write a file with these pairs and tensors in this order.

    `general.alignment` is appended where the alignment is not 32 and the key is absent.
    InvalidArgument for duplicate names, sizes that disagree, or what `open_gguf` would not read;
    IoFailure when the system refuses. Nothing is left behind then, and a file that was at `path`
    is untouched.
    """
    pairs = _with_alignment(metadata, alignment)
    _check_pairs(pairs)
    _check_tensors(tensors)
    with new_file(path) as out:
        _stream(out, pairs, tensors, alignment)


def stream_gguf(
    out: BinaryIO, metadata: Sequence[Pair], tensors: Sequence[TensorSource], alignment: int
) -> None:
    """The bytes that `write_gguf` would write, to a stream of the caller's; nothing is cleaned up.

    InvalidArgument as there; whatever the stream and the chunks raise comes through.
    """
    pairs = _with_alignment(metadata, alignment)
    _check_pairs(pairs)
    _check_tensors(tensors)
    _stream(out, pairs, tensors, alignment)


def _stream(
    out: BinaryIO, pairs: Sequence[Pair], tensors: Sequence[TensorSource], alignment: int
) -> None:
    n_header = sum(out.write(piece) for piece in _header(pairs, tensors, alignment))
    _pad(out, n_header, alignment)
    for tensor in tensors:
        _write_data(out, tensor)
        _pad(out, tensor.n_bytes, alignment)


def to_float32_gguf(src: GgufFile, dst_path: PathLike) -> None:
    """Copy a model with every decodable tensor as F32 and `general.file_type` 0 where present.

    Integer and F64 tensors are copied as they are. ModelError for a format without a decoder,
    InvalidArgument when the output is the input.
    """
    refuse_input_as_output(dst_path, src.file_ids())
    all_f32 = GgufValue.of(ValueType.UINT32, _ALL_F32)
    pairs = [(k, all_f32 if k == _FILE_TYPE_KEY else v) for k, v in src.metadata.items()]
    write_gguf(dst_path, pairs, [_as_float32(t) for t in src.tensors], src.alignment)


def _as_float32(tensor: GgufTensor) -> TensorSource:
    if tensor.ggml_type in quants.RAW_DTYPES:
        return TensorSource.copy_of(tensor)
    tensor.require_decoder()
    n_bytes = tensor.n_elements * GGML_TYPES[ggml_types.F32].block_bytes
    chunks = quants.float32_chunks(tensor.raw(), tensor.ggml_type)
    return TensorSource(tensor.name, tensor.dims, ggml_types.F32, n_bytes, chunks)


def _with_alignment(metadata: Sequence[Pair], alignment: int) -> list[Pair]:
    if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise InvalidArgument(
            f"alignment {alignment} is not a power of two from 1 to {MAX_ALIGNMENT}"
        )
    wanted = GgufValue.of(ValueType.UINT32, alignment)
    stored = dict(metadata).get(ALIGNMENT_KEY)
    if stored is not None and stored != wanted:
        raise InvalidArgument(
            f"{ALIGNMENT_KEY} is {stored.type.name} {stored.value}, the file's is {alignment}"
        )
    if stored is None and alignment != DEFAULT_ALIGNMENT:
        return [*metadata, (ALIGNMENT_KEY, wanted)]
    return list(metadata)


def _check_pairs(pairs: Sequence[Pair]) -> None:
    if len(pairs) > MAX_PAIRS:
        raise InvalidArgument(f"{len(pairs)} metadata pairs, at most {MAX_PAIRS} are written")
    _check_names("metadata key", [key for key, _ in pairs], MAX_KEY_BYTES)


def _check_names(what: str, names: Sequence[str], limit: int) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidArgument(f"{what} {printable(name)} occurs twice")
        seen.add(name)
        try:
            n_bytes = len(name.encode())
        except UnicodeEncodeError as e:
            raise InvalidArgument(f"{what} {printable(name)} is not text: {e.reason}") from e
        if not 1 <= n_bytes <= limit or "\0" in name:
            raise InvalidArgument(
                f"{what} {printable(name, limit)} has {n_bytes} bytes;"
                f" it needs 1 to {limit} and no NUL"
            )


def _check_tensors(tensors: Sequence[TensorSource]) -> None:
    if len(tensors) > MAX_TENSORS:
        raise InvalidArgument(f"{len(tensors)} tensors, at most {MAX_TENSORS} are written")
    _check_names("tensor", [tensor.name for tensor in tensors], MAX_NAME_BYTES)
    for tensor in tensors:
        _check_layout(tensor)


def _check_layout(tensor: TensorSource) -> None:
    what, dims = f"tensor {printable(tensor.name)}", tensor.dims
    n_elements = math.prod(dims)
    if not 1 <= len(dims) <= MAX_DIMS or min(dims) < 1 or n_elements > MAX_ELEMENTS:
        raise InvalidArgument(
            f"{what} has dimensions {dims}; it needs 1 to {MAX_DIMS} of at least 1 each,"
            f" and at most {MAX_ELEMENTS} elements"
        )
    kind = GGML_TYPES.get(tensor.ggml_type)
    if kind is None or dims[0] % kind.block_elements:
        raise InvalidArgument(
            f"{what} has rows of {dims[0]} elements, which {type_label(tensor.ggml_type)}"
            " does not divide into blocks"
        )
    expected = n_elements // kind.block_elements * kind.block_bytes
    if tensor.n_bytes != expected:
        raise InvalidArgument(
            f"{what} announces {tensor.n_bytes} bytes,"
            f" {kind.name} with dimensions {dims} takes {expected}"
        )


def _header(
    pairs: Sequence[Pair], tensors: Sequence[TensorSource], alignment: int
) -> Iterator[Encoded]:
    """The bytes before the data, in pieces; values are not copied, they may be large."""
    yield MAGIC + U32.pack(VERSION) + U64.pack(len(tensors)) + U64.pack(len(pairs))
    for key, value in pairs:
        yield _string(key) + U32.pack(value.type)
        yield value.payload
    offset = 0
    for tensor in tensors:
        dims = b"".join(map(U64.pack, tensor.dims))
        place = U32.pack(tensor.ggml_type) + U64.pack(offset)
        yield _string(tensor.name) + U32.pack(len(tensor.dims)) + dims + place
        offset += tensor.n_bytes + _padding(tensor.n_bytes, alignment)


def _string(text: str) -> bytes:
    raw = text.encode()
    return U64.pack(len(raw)) + raw


def _write_data(out: BinaryIO, tensor: TensorSource) -> None:
    n_written = 0
    for chunk in tensor.chunks:
        piece = np.ascontiguousarray(chunk).data if isinstance(chunk, np.ndarray) else chunk
        n_written += memoryview(piece).nbytes
        if n_written > tensor.n_bytes:
            break
        out.write(piece)
    if n_written != tensor.n_bytes:
        more = "or more " if n_written > tensor.n_bytes else ""
        raise InvalidArgument(
            f"tensor {printable(tensor.name)} gave {n_written} {more}bytes"
            f" of data and announced {tensor.n_bytes}"
        )


def _pad(out: BinaryIO, n_bytes: int, alignment: int) -> None:
    out.write(bytes(_padding(n_bytes, alignment)))


def _padding(n_bytes: int, alignment: int) -> int:
    return -n_bytes % alignment
