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
Of parts, the metadata is the first part's and the first tensor of a name counts.
"""

import hashlib
from collections.abc import Iterator

from engine.artifacts.gguf import GgufFile, GgufTensor
from engine.artifacts.gguf_types import ALIGNMENT_KEY, U32, U64, Encoded

_TITLE = b"gguf-content-1\n"
_LAYOUT_PREFIXES = ("skippy.", "split.")


def content_digest(model: GgufFile) -> str:
    """Hex digest of an open model: of one file, or of its parts as `open_parts` sees them."""
    digest = hashlib.sha256(_TITLE)
    for piece in _stream(model):
        digest.update(piece)
    return digest.hexdigest()


def _stream(model: GgufFile) -> Iterator[Encoded]:
    keys = [key for key in model.metadata if not _is_layout(key)]
    yield U64.pack(len(keys))
    for key in sorted(keys, key=str.encode):
        value = model.metadata[key]
        yield _bytes(key.encode()) + U32.pack(value.type) + U64.pack(len(value.payload))
        yield value.payload
    yield U64.pack(len(model.tensors))
    for tensor in sorted(model.tensors, key=lambda t: t.name.encode()):
        dims = _significant_dims(tensor)
        yield _bytes(tensor.name.encode()) + U32.pack(tensor.ggml_type) + U32.pack(len(dims))
        yield b"".join(map(U64.pack, dims))
        yield hashlib.sha256(tensor.raw().data).digest()


def _is_layout(key: str) -> bool:
    return key == ALIGNMENT_KEY or key.startswith(_LAYOUT_PREFIXES)


def _bytes(raw: bytes) -> bytes:
    return U64.pack(len(raw)) + raw


def _significant_dims(tensor: GgufTensor) -> tuple[int, ...]:
    n_dims = len(tensor.dims)
    while n_dims > 1 and tensor.dims[n_dims - 1] == 1:
        n_dims -= 1
    return tensor.dims[:n_dims]
