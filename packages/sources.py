"""Owns what the converter asks of a source of weights, and of the package it converts for.

A source gives upstream's tensors by their text-only names, whatever its files call them and however
they store them. The two sources: `checkpoint_source.py`, `gguf_source.py`.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from engine.artifacts.gguf import GgufFile
from engine.artifacts.mapped_file import FileId, printable
from engine.artifacts.mspec_format import Kind
from engine.errors import ModelError

Block = npt.NDArray[Any]

# Names of text objects.
CONFIG, TOKENIZER, CHAT_TEMPLATE = "config", "tokenizer.json", "chat_template"


class Expected(Protocol):
    """What a package's inventory says of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Upstream's shape, outermost first."""

    @property
    def role(self) -> str:
        """What it is for; recipes choose by it."""


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of a source: `stored` and `dtype` in the source's words, upstream's `shape`.

    `blocks()` gives its rows in order as float32, float16 or uint16 (the bits of BF16), each array
    good until the next is asked for. A tensor that is not `is_float` has none.
    """

    stored: str
    dtype: str
    shape: tuple[int, ...]
    is_float: bool
    blocks: Callable[[], Iterator[Block]]


@dataclass(frozen=True)
class Text:
    """A text object of the artifact."""

    kind: Kind
    text: str


class Source(Protocol):
    """An open source. `identity`: hex digest that another source, or a changed one, has not."""

    shown: str
    identity: str
    n_bytes: int
    file_ids: frozenset[FileId]
    tensors: dict[str, SourceTensor]
    left_out: dict[str, int]
    texts: dict[str, Text]

    def require_unchanged(self) -> None:
        """ModelError when a file is not the one that was opened any more."""

    def close(self) -> None:
        """Let go of the files."""


@dataclass(frozen=True)
class Convertible:
    """What a package says for conversion; `key` and `model_id` include the twin.

    `text_name` and `left_out` judge a checkpoint's tensor name; `check_config` and `check_gguf`
    raise ModelError where a source states another model, and `upstream_tensors` undoes GGUF storage
    (and counts what it leaves out).
    """

    key: str
    model_id: str
    is_twin: bool
    n_ids: int
    dims: Any
    inventory: Mapping[str, Expected]
    text_name: Callable[[str], str]
    left_out: Callable[[str], str | None]
    check_config: Callable[[Any, str], None]
    check_gguf: Callable[[GgufFile], None]
    upstream_tensors: Callable[[GgufFile], tuple[dict[str, SourceTensor], dict[str, int]]]


class Files:
    """The files of a source: their identity, and whether they are still the same."""

    def __init__(self, paths: Sequence[Path], contents: Mapping[str, str]) -> None:
        """`contents`: name -> hex digest of what was read of it (a header, or all)."""
        self._stats = {path: _stat(path) for path in paths}
        self.file_ids = frozenset(FileId(s.st_dev, s.st_ino) for s in self._stats.values())
        self.n_bytes = sum(s.st_size for s in self._stats.values())
        # Digests of tens of gigabytes would cost a resumed run minutes before its first byte. Name,
        # length, time of change and header tell apart whatever is not made to deceive, and a
        # mistake on the other side (a copy with new times) only costs a fresh start.
        rows = [[p.name, s.st_size, s.st_mtime_ns] for p, s in self._stats.items()]
        text = json.dumps([sorted(rows), sorted(contents.items())])
        self.identity = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def require_unchanged(self) -> None:
        """ModelError naming a file that was written to or replaced since."""
        for path, before in self._stats.items():
            now = _stat(path)
            fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
            if any(getattr(now, field) != getattr(before, field) for field in fields):
                raise ModelError(f"{shown(path)} was changed while it was converted")


def check_ids(tokenizer: Any, n_ids: int, what: str) -> None:
    """ModelError unless the ids of a parsed tokenizer.json are just 0 to n_ids - 1 at most.

    A higher one would never be generated, and of a missing one nobody could read the text.
    """
    try:
        ids = list(tokenizer["model"]["vocab"].values())
        ids += [token["id"] for token in tokenizer.get("added_tokens") or []]
    except (AttributeError, KeyError, TypeError) as e:
        raise ModelError(f"{what}: no vocabulary of ids in it") from e
    if not ids or not all(type(i) is int for i in ids):
        raise ModelError(f"{what}: no vocabulary of ids in it")
    if max(ids) != n_ids - 1:
        raise ModelError(f"{what}: highest id is {max(ids)}, the package's is {n_ids - 1}")


def shown(path: Path) -> str:
    """A path for a message."""
    return printable(os.fsencode(path))


def _stat(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as e:
        raise ModelError(f"cannot open {shown(path)}: {e.strerror}") from e
