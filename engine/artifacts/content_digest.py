"""Owns the content identity of a model: the same whether it is one file or cut into parts.

The digest is SHA-256 over this byte stream; integers are unsigned, little-endian, 64 bits unless
said otherwise, and `bytes(x)` means the length of x followed by x:

    "gguf-content-1\\n"
    number of pairs; then, sorted by the UTF-8 bytes of the key, for each pair
        bytes(key), value type id (32 bits), bytes(value as stored after the type id)
    number of tensors; then, sorted by the UTF-8 bytes of the name, for each tensor
        bytes(name), ggml type id (32 bits),
        number of dimensions (32 bits) and each dimension, innermost first, without trailing ones
        (but at least one dimension stays),
        SHA-256 of the data without padding (32 bytes)

Left out are pairs that say how a file was cut and laid out, not what the model is: every key that
begins with `skippy.` or `split.`, and `general.alignment`. Order, offsets and padding do not count.
Of parts, the metadata is the first part's and the first tensor of a name counts. Since a tensor
enters by its digest, a list of all tensors with theirs proves that a few of them belong to a model
whose content digest is known: `digest_with` of the list is that digest.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.artifacts.gguf import GgufFile, GgufTensor
from engine.artifacts.gguf_types import ALIGNMENT_KEY, U32, U64, Encoded

_TITLE = b"gguf-content-1\n"
_LAYOUT_PREFIXES = ("skippy.", "split.")


class TensorDigest(NamedTuple):
    """What the content digest takes in of one tensor: `dims` innermost first without trailing ones,
    `sha256` (32 bytes) of its data without padding."""

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    sha256: bytes


def content_digest(model: GgufFile) -> str:
    """Hex digest of an open model: of one file, or of its parts as `open_parts` sees them."""
    return digest_with(model, tensor_digests(model))


def tensor_digests(model: GgufFile) -> list[TensorDigest]:
    """Every tensor with the digest of its data, in file order. Reads all data."""
    return [
        TensorDigest(t.name, t.ggml_type, _significant_dims(t),
                     hashlib.sha256(t.raw().data).digest())
        for t in model.tensors
    ]


def digest_with(model: GgufFile, tensors: Sequence[TensorDigest]) -> str:
    """Hex content digest of a model that has this file's metadata and these tensors."""
    digest = hashlib.sha256(_TITLE)
    for piece in _stream(model, tensors):
        digest.update(piece)
    return digest.hexdigest()


def _stream(model: GgufFile, tensors: Sequence[TensorDigest]) -> Iterator[Encoded]:
    keys = [key for key in model.metadata if not _is_layout(key)]
    yield U64.pack(len(keys))
    for key in sorted(keys, key=str.encode):
        value = model.metadata[key]
        yield _bytes(key.encode()) + U32.pack(value.type) + U64.pack(len(value.payload))
        yield value.payload
    yield U64.pack(len(tensors))
    for name, ggml_type, dims, sha256 in sorted(tensors, key=lambda t: t.name.encode()):
        yield _bytes(name.encode()) + U32.pack(ggml_type) + U32.pack(len(dims))
        yield b"".join(map(U64.pack, dims))
        yield sha256


def _is_layout(key: str) -> bool:
    return key == ALIGNMENT_KEY or key.startswith(_LAYOUT_PREFIXES)


def _bytes(raw: bytes) -> bytes:
    return U64.pack(len(raw)) + raw


def _significant_dims(tensor: GgufTensor) -> tuple[int, ...]:
    n_dims = len(tensor.dims)
    while n_dims > 1 and tensor.dims[n_dims - 1] == 1:
        n_dims -= 1
    return tensor.dims[:n_dims]
