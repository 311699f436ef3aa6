"""Owns the view of a GGUF model file: typed metadata, and tensors as slices of the mapped file.

Knows nothing of any architecture. `open_gguf` validates everything (`gguf_parse.py`) before
anything is used; a file that shrinks while open is out of scope (`mapped_file.py`).
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.artifacts import quants
from engine.artifacts.closing import Closing
from engine.artifacts.ggml_types import type_label
from engine.artifacts.gguf_parse import parse_header
from engine.artifacts.gguf_types import GgufValue
from engine.artifacts.mapped_file import FileId, MappedFile, PathLike, printable
from engine.errors import ModelError

_HASH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of an open file.

    `dims` as stored, innermost first, 1 to 4 of them; `ggml_type` a key of `GGML_TYPES`; `offset`
    of the first data byte from the start of its file; `n_bytes` of data without padding.
    """

    name: str
    dims: tuple[int, ...]
    ggml_type: int
    offset: int
    n_bytes: int
    file: MappedFile

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions outermost first, as numpy has them."""
        return self.dims[::-1]

    @property
    def n_elements(self) -> int:
        """Product of the dimensions."""
        return math.prod(self.dims)

    def raw(self) -> npt.NDArray[np.uint8]:
        """uint8 [n_bytes], a read-only view of the file. InvalidArgument after it was closed."""
        return np.frombuffer(self.file.view, np.uint8, self.n_bytes, self.offset)

    def to_float32(self, *, check_finite: bool = False) -> npt.NDArray[np.float32]:
        """A fresh float32 array of `shape`, bit for bit what ggml decodes.

        ModelError naming the tensor for a format without a decoder and, when asked to check, for
        the first NaN or infinity.
        """
        self.require_decoder()
        out = np.empty(self.n_elements, np.float32)
        quants.decode_into(self.raw(), self.ggml_type, out)
        if check_finite:
            self._refuse_not_finite(out)
        return out.reshape(self.shape)

    def require_decoder(self) -> None:
        """ModelError naming the tensor when its format cannot become float32."""
        if not quants.can_decode(self.ggml_type):
            kind = type_label(self.ggml_type)
            raise ModelError(f"{self._shown}: {kind} cannot be decoded to float32")

    @property
    def _shown(self) -> str:
        return f"{self.file.shown}: tensor {printable(self.name)}"

    def _refuse_not_finite(self, flat: npt.NDArray[np.float32]) -> None:
        step = quants.CHUNK_ELEMENTS
        for start in range(0, flat.size, step):
            finite = np.isfinite(flat[start : start + step])
            if not finite.all():
                first = start + int(finite.argmin())
                where = [int(i) for i in np.unravel_index(first, self.shape)]
                raise ModelError(f"{self._shown}: element {where} is {flat[first]}, not finite")


class GgufFile(Closing):
    """An open model: one file, or the parts of one seen as a whole (`slices.open_parts`).

    `path` the (first) file, `metadata` typed values in file order, `tensors` in file order,
    `alignment` of tensor data in bytes, `files` what is mapped. Usable from several threads; a
    context manager.
    """

    def __init__(
        self,
        files: Sequence[MappedFile],
        metadata: dict[str, GgufValue],
        tensors: Sequence[GgufTensor],
        alignment: int,
    ) -> None:
        """Made by `open_gguf` and `open_parts`."""
        self.files = tuple(files)
        self.path = files[0].path
        self.shown = files[0].shown
        self.metadata = metadata
        self.tensors = tuple(tensors)
        self.alignment = alignment
        self._by_name = {tensor.name: tensor for tensor in self.tensors}
        self._sha256: str | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """The plain Python value of a key (strings as str), or the default where it is absent.

        ModelError when a string in it is not valid UTF-8; `metadata[key].value` gives the bytes.
        """
        found = self.metadata.get(key)
        if found is None:
            return default
        return found.text(f"{self.shown}: metadata {printable(key)}")

    def tensor(self, name: str) -> GgufTensor:
        """The tensor of that name; ModelError when there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise ModelError(f"{self.shown}: no tensor {printable(name)} in {len(self.tensors)}")
        return found

    def __contains__(self, name: str) -> bool:
        """Whether a tensor has that name."""
        return name in self._by_name

    def file_ids(self) -> frozenset[FileId]:
        """Identity of every file behind this view, whatever names lead to it."""
        return frozenset(file.file_id for file in self.files)

    def sha256(self) -> str:
        """Hex digest of all bytes of the file, or of all parts one after the other. Kept."""
        if self._sha256 is None:
            digest = hashlib.sha256()
            for file in self.files:
                # hashlib lets other threads run during an update, one piece at a time
                for start in range(0, file.n_bytes, _HASH_BYTES):
                    digest.update(file.view[start : start + _HASH_BYTES])
            self._sha256 = digest.hexdigest()
        return self._sha256

    def close(self) -> None:
        """Let go of the files. Arrays and values handed out stay valid and keep them mapped."""
        for file in self.files:
            file.close()


def open_gguf(path: PathLike) -> GgufFile:
    """Map and validate a GGUF version 3 file.

    ModelError, at once and with the path, when it is missing, unreadable, not a regular file or not
    sound; no claim of the file costs more than a second or 64 MiB.
    """
    file = MappedFile(path)
    header = parse_header(file.view, file.shown)
    tensors = [GgufTensor(*place, file) for place in header.tensors]
    return GgufFile((file,), header.metadata, tensors, header.alignment)
