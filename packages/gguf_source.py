"""Owns a GGUF file as a source: one file, its tensors as upstream has them, its tokenizer.

What the file's names and layouts mean is the package's (`Convertible.upstream_tensors`).
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.artifacts import ggml_types, quants
from engine.artifacts.ggml_types import GGML_TYPES
from engine.artifacts.gguf import GgufFile, GgufTensor, open_gguf
from engine.artifacts.mspec_format import Kind
from engine.artifacts.row_blocks import forget, row_ranges
from engine.artifacts.strict_json import parse_json
from engine.errors import ModelError
from packages.gguf_tokenizer import tokenizer_json
from packages.sources import (
    CHAT_TEMPLATE,
    TOKENIZER,
    Block,
    Convertible,
    Files,
    Text,
    check_ids,
)

TEMPLATE_KEY, TOKENS_KEY = "tokenizer.chat_template", "tokenizer.ggml.tokens"
# Formats that are arrays; uint16 stands for the bits of BF16.
_PLAIN: dict[int, np.dtype[Any]] = {
    ggml_types.F32: np.dtype("<f4"), ggml_types.F16: np.dtype("<f2"),
    ggml_types.BF16: np.dtype("<u2"),
}


class GgufSource:
    """An open GGUF file (`packages.sources.Source`)."""

    def __init__(self, path: Path, model: Convertible) -> None:
        """Open and check everything but the numbers; ModelError names field or tensor."""
        self.file = open_gguf(path)
        self.shown = self.file.shown
        try:
            model.check_gguf(self.file)
            self.tensors, self.left_out = model.upstream_tensors(self.file)
            self.texts = _texts(self.file, model)
        except BaseException:
            self.close()
            raise
        self._files = Files([path], {path.name: _header_sha256(self.file)})
        self.identity, self.n_bytes = self._files.identity, self._files.n_bytes
        self.file_ids = self._files.file_ids

    def require_unchanged(self) -> None:
        """ModelError when the file is not the one that was opened any more."""
        self._files.require_unchanged()

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()


def has_rows(tensor: GgufTensor) -> bool:
    """Whether `rows` can read it: a known float format, whose blocks lie within rows."""
    is_blocked = GGML_TYPES[tensor.ggml_type].block_elements > 1
    return quants.can_decode(tensor.ggml_type) and not (is_blocked and len(tensor.shape) == 1)


def rows(tensor: GgufTensor, start: int, stop: int) -> Iterator[Block]:
    """Rows [start, stop) of a tensor in blocks [n, *shape[1:]], in order.

    float32, float16 or BF16 bits as stored, block formats decoded to float32; each block is good
    until the next is asked for.
    """
    kind = GGML_TYPES[tensor.ggml_type]
    width = tensor.n_elements // tensor.shape[0]
    row_bytes = width // kind.block_elements * kind.block_bytes
    for first, last in row_ranges(stop - start, row_bytes):
        begin = tensor.offset + (start + first) * row_bytes
        end = tensor.offset + (start + last) * row_bytes
        raw = np.frombuffer(tensor.file.view[begin:end], np.uint8)
        plain = _PLAIN.get(tensor.ggml_type)
        if plain is not None:
            values = raw.view(plain)
        else:
            values = np.empty((last - first) * width, np.float32)
            quants.decode_into(raw, tensor.ggml_type, values)
        yield values.reshape(last - first, *tensor.shape[1:])
        forget(tensor.file.view, begin, end)


def _texts(file: GgufFile, model: Convertible) -> dict[str, Text]:
    texts = {}
    if TOKENS_KEY in file.metadata:
        text = tokenizer_json(file)
        what = f"{file.shown}: its tokenizer"
        check_ids(parse_json(text.encode(), what), model.n_ids, what)
        texts[TOKENIZER] = Text(Kind.JSON, text)
    elif not model.is_twin:
        raise ModelError(f"{file.shown}: no {TOKENS_KEY}; only a twin is converted without one")
    template = file.get(TEMPLATE_KEY)
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{file.shown}: {TEMPLATE_KEY} is not a text")
    if template:
        texts[CHAT_TEMPLATE] = Text(Kind.TEXT, template)
    return texts


def _header_sha256(file: GgufFile) -> str:
    """Digest of everything in front of the data."""
    end = min((tensor.offset for tensor in file.tensors), default=0)
    return hashlib.sha256(file.files[0].view[:end]).hexdigest()
