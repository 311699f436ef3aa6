"""Owns the view of one GGUF file of a package: raw pairs, tensors, and pieces of their bytes.

It must not know what a tensor is for (`roles.py`) nor what the manifest says. The rules of reading
are in `fragment_reader.py`. Everything is read through an open descriptor with `pread`, never
mapped: a file that shrinks while it is read is an error and not the end of the process.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from engine.artifacts.gguf_types import GgufValue, ValueType
from packages.layer_package.errors import ArtifactError, GgufError, Report
from packages.layer_package.fragment_reader import FragmentTensor as FragmentTensor
from packages.layer_package.fragment_reader import RawPair as RawPair
from packages.layer_package.fragment_reader import parse

PIECE_BYTES = 4 << 20
ARCHITECTURE_KEY = "general.architecture"
_INTEGERS = frozenset((
    ValueType.UINT8, ValueType.INT8, ValueType.UINT16, ValueType.INT16, ValueType.UINT32,
    ValueType.INT32, ValueType.UINT64, ValueType.INT64,
))  # fmt: skip


class Readable(Protocol):
    """An open regular file: its descriptor, and its bytes when it was opened (`OpenedFile`)."""

    @property
    def fd(self) -> int:
        """An open descriptor; `pread` leaves its position alone."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the file when it was opened."""


class Tail(NamedTuple):
    """What follows the last tensor and is no zero padding: where, and how many bytes."""

    offset: int
    n_bytes: int


@dataclass(frozen=True)
class Fragment:
    """A checked GGUF file. `pairs` and `tensors` in file order; offsets from the file's start.

    `version` 2 or 3; `alignment` of tensor data in bytes; `header_bytes` in front of the padding
    before the data. It keeps nothing open.
    """

    version: int
    pairs: tuple[RawPair, ...]
    tensors: tuple[FragmentTensor, ...]
    alignment: int
    header_bytes: int

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors without padding."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @cached_property
    def by_name(self) -> dict[str, FragmentTensor]:
        """The tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def by_key(self) -> dict[str, RawPair]:
        """The pairs by key."""
        return {pair.key: pair for pair in self.pairs}

    @property
    def architecture(self) -> str | None:
        """`general.architecture`; None where it is absent, not text or not UTF-8."""
        return self.text(ARCHITECTURE_KEY)

    def value(self, key: str) -> Any:
        """A pair's value: int, float, bool, bytes (text, undecoded) or a list; None if absent."""
        pair = self.by_key.get(key)
        return None if pair is None else GgufValue(pair.type, pair.payload).value

    def text(self, key: str) -> str | None:
        """A text value; None where it is absent, of another type or not UTF-8."""
        pair = self.by_key.get(key)
        if pair is None or pair.type != ValueType.STRING:
            return None
        try:
            return pair.payload[8:].decode()
        except UnicodeDecodeError:
            return None

    def integer(self, key: str) -> int | None:
        """An integer of any width; None where it is absent or of another type."""
        pair = self.by_key.get(key)
        return int(self.value(key)) if pair is not None and pair.type in _INTEGERS else None


def read_fragment(
    opened: Readable,
    artifact: str,
    *,
    report: Report | None = None,
    pool: dict[bytes, bytes] | None = None,
) -> Fragment:
    """Read and check everything but the tensor data.

    `artifact` names the file in messages. GgufError with a kind `gguf_*`; ArtifactError
    `artifact_unreadable` when the system refuses. Bytes behind the last tensor that are no padding
    are the warning `gguf_trailing_bytes` of `report`. With one dict as `pool` for all fragments of
    a package, large values that repeat are kept once and looked through once.
    """
    try:
        fragment = Fragment(*parse(opened.fd, opened.n_bytes, artifact, pool))
        tail = _tail(opened, fragment) if report is not None else None
    except OSError as e:
        raise _unreadable(artifact, e) from e
    if report is not None and tail is not None:
        report.warn(
            "gguf_trailing_bytes",
            f"{tail.n_bytes} bytes from byte {tail.offset} on are neither tensor nor padding",
            artifact=artifact,
        )
    return fragment


def tensor_pieces(opened: Readable, artifact: str, tensor: FragmentTensor) -> Iterator[memoryview]:
    """The tensor's bytes in pieces of 4 MiB, each valid until the next is asked for.

    GgufError `gguf_truncated` when the file has become shorter, ArtifactError when it cannot be
    read.
    """
    return pieces(opened, artifact, tensor.offset, tensor.n_bytes)


def pieces(
    opened: Readable, artifact: str, offset: int, n_bytes: int, buffer: bytearray | None = None
) -> Iterator[memoryview]:
    """Bytes [offset, offset + n_bytes) of the file, in pieces that share one buffer."""
    room = memoryview(bytearray(min(n_bytes, PIECE_BYTES)) if buffer is None else buffer)
    end = offset + n_bytes
    while offset < end:
        try:
            n_read = os.preadv(opened.fd, [room[: min(end - offset, len(room))]], offset)
        except OSError as e:
            raise _unreadable(artifact, e) from e
        if n_read == 0:
            raise GgufError(
                "gguf_truncated", f"the file ends at byte {offset}, {end} are needed",
                artifact=artifact,
            )  # fmt: skip
        yield room[:n_read]
        offset += n_read


def tensor_digest(opened: Readable, artifact: str, tensor: FragmentTensor) -> bytes:
    """SHA-256 of the tensor's bytes, to compare equal names in two files."""
    digest = hashlib.sha256()
    for piece in tensor_pieces(opened, artifact, tensor):
        digest.update(piece)
    return digest.digest()


def _tail(opened: Readable, fragment: Fragment) -> Tail | None:
    """Bytes behind the end of the data, unless they are zeros up to the next alignment."""
    ends = (tensor.offset + tensor.n_bytes for tensor in fragment.tensors)
    end = max(ends, default=fragment.header_bytes)
    n_left = opened.n_bytes - end
    n_padding = -end % fragment.alignment
    if n_left <= n_padding and not any(os.pread(opened.fd, max(n_left, 0), end)):
        return None
    return Tail(end, n_left)


def _unreadable(artifact: str, error: OSError) -> ArtifactError:
    return ArtifactError(
        "artifact_unreadable", f"cannot be read: {error.strerror}", artifact=artifact
    )
