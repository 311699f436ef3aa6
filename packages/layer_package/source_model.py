"""Owns the opened source model: a complete shard set, its headers, its tensors with their roles.

It must not know packages nor how they are written. Every failure names the shard by its file name.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from engine.artifacts.gguf_types import ValueType
from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import ArtifactError, ContentError, GgufError, WriterError
from packages.layer_package.fragments import Fragment, FragmentTensor, RawPair, read_fragment
from packages.layer_package.opened_file import OpenedFile, open_file
from packages.layer_package.roles import TensorRole, role_of
from packages.layer_package.shard_names import shard_name

SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
OWN_PREFIX = "skippy."
_SHOWN, _MAX_LISTED = 80, 4
_WIDTH_TYPES = (ValueType.UINT8, ValueType.UINT16, ValueType.UINT32, ValueType.INT32)


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the source, open; `name` without folders."""

    name: str
    opened: OpenedFile
    fragment: Fragment


class SourceTensor(NamedTuple):
    """A tensor of the source, its shard's index from 0, and what it is for."""

    tensor: FragmentTensor
    shard_index: int
    role: TensorRole


@dataclass(frozen=True, slots=True)
class Source:
    """A model that can be cut: `tensors` in source order, `pairs` of the first shard as read.

    `alignment` in bytes; `activation_width` in elements. A context manager that closes the shards.
    """

    shards: tuple[Shard, ...]
    tensors: tuple[SourceTensor, ...]
    architecture: str
    layer_count: int
    activation_width: int

    @property
    def first(self) -> Fragment:
        """The first shard's header: pairs and alignment are taken from it."""
        return self.shards[0].fragment

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(shard.opened.n_bytes for shard in self.shards)

    def __enter__(self) -> "Source":
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Close the files."""
        for shard in self.shards:
            shard.opened.close()


def open_source(path: Path) -> Source:
    """Open the model that the file is, or is a shard of, and check what a package needs of it.

    WriterError `missing_source_shard`, `source_shard_mismatch`, `source_shard_metadata_conflict`,
    `missing_architecture`, `no_layer_tensors`, `layer_without_tensors`, `layer_count_mismatch`,
    `missing_embedding_length`, `invalid_embedding_length`; ContentError `invalid_layer_name`;
    GgufError by the rules of reading, `gguf_duplicate_tensor` also across shards; ArtifactError.
    """
    with contextlib.ExitStack() as stack:
        shards: list[Shard] = []
        for shard_path in _shard_paths(path):
            opened = stack.enter_context(open_file(shard_path, shard_path.name))
            fragment = read_fragment(opened, shard_path.name)
            shards.append(Shard(shard_path.name, opened, fragment))
        _check_split(shards)
        _check_pairs(shards)
        tensors = _tensors(shards)
        architecture, layer_count, width = _dims(shards[0], tensors)
        stack.pop_all()
    return Source(tuple(shards), tensors, architecture, layer_count, width)


def is_split_key(key: str) -> bool:
    """Whether a pair belongs to the source's files and never to a fragment."""
    return key in SPLIT_KEYS or key.startswith(OWN_PREFIX)


def _shard_paths(path: Path) -> list[Path]:
    shard = shard_name(path.name)
    if shard is None:
        return [path]
    if not 1 <= shard.number <= shard.total:
        raise WriterError(
            "source_shard_mismatch",
            f"{printable(path.name, _SHOWN)} is number {shard.number} of {shard.total}",
        )
    names = [shard.of(number) for number in range(1, shard.total + 1)]
    missing = [name for name in names if not os.path.lexists(path.with_name(name))]
    if missing:
        listed = ", ".join(printable(name, _SHOWN) for name in missing[:_MAX_LISTED])
        raise WriterError(
            "missing_source_shard",
            f"{len(missing)} of {shard.total} shards are not beside the file: {listed}",
        )
    return [path.with_name(name) for name in names]


def _check_split(shards: Sequence[Shard]) -> None:
    """What the files say of their set, where they say it."""
    n_tensors = sum(len(shard.fragment.tensors) for shard in shards)
    for number, shard in enumerate(shards):
        facts = zip(SPLIT_KEYS, (number, len(shards), n_tensors), strict=True)
        for key, wanted in facts:
            pair = shard.fragment.by_key.get(key)
            # the number of a file that is no set is nobody's
            if pair is None or (key == "split.no" and len(shards) == 1):
                continue
            found = shard.fragment.integer(key)
            if found != wanted:
                raise WriterError(
                    "source_shard_mismatch",
                    f"{key} is {found}, the {len(shards)} files beside each other make it {wanted}",
                    artifact=shard.name,
                )


def _check_pairs(shards: Sequence[Shard]) -> None:
    """Later shards may only repeat pairs of the first."""
    first = shards[0].fragment.by_key
    for shard in shards[1:]:
        for pair in shard.fragment.pairs:
            if not is_split_key(pair.key) and first.get(pair.key) != pair:
                what = "differs from" if pair.key in first else "is not in"
                raise WriterError(
                    "source_shard_metadata_conflict",
                    f"{printable(pair.key, _SHOWN)} {what} the first shard",
                    artifact=shard.name,
                )


def _tensors(shards: Sequence[Shard]) -> tuple[SourceTensor, ...]:
    found: dict[str, SourceTensor] = {}
    for index, shard in enumerate(shards):
        for tensor in shard.fragment.tensors:
            if tensor.name in found:
                raise GgufError(
                    "gguf_duplicate_tensor",
                    f"tensor {printable(tensor.name, _SHOWN)} is also in"
                    f" {printable(shards[found[tensor.name].shard_index].name, _SHOWN)}",
                    artifact=shard.name,
                )
            try:
                role = role_of(tensor.name)
            except ContentError as e:
                raise ContentError(e.kind, e.issue.message, artifact=shard.name) from e
            found[tensor.name] = SourceTensor(tensor, index, role)
    return tuple(found.values())


def _dims(first: Shard, tensors: Sequence[SourceTensor]) -> tuple[str, int, int]:
    """Architecture, layers, and width of the residual stream."""
    fragment, name = first.fragment, first.name
    architecture = fragment.architecture
    if not architecture:
        message = "there is no text general.architecture"
        raise WriterError("missing_architecture", message, artifact=name)
    layer_count = _layer_count(tensors)
    n_blocks = fragment.integer(f"{architecture}.block_count")
    if n_blocks is not None and n_blocks != layer_count:
        raise WriterError(
            "layer_count_mismatch",
            f"{printable(architecture, _SHOWN)} has block_count {n_blocks},"
            f" the tensors have {layer_count} layers",
            artifact=name,
        )
    return architecture, layer_count, _width(fragment, architecture, name)


def _layer_count(tensors: Sequence[SourceTensor]) -> int:
    layers = {role.layer_index for _, _, role in tensors if role.layer_index is not None}
    if not layers:
        raise WriterError("no_layer_tensors", f"none of {len(tensors)} tensors is of a layer")
    layer_count = max(layers) + 1
    if len(layers) < layer_count:
        # found without counting up to a number that the file made up
        missing = next(index for index in range(len(layers) + 1) if index not in layers)
        raise WriterError(
            "layer_without_tensors",
            f"layer {missing} has no tensor; the highest layer is {layer_count - 1}"
            f" and {len(layers)} layers have tensors",
        )
    return layer_count


def _width(fragment: Fragment, architecture: str, name: str) -> int:
    key = f"{architecture}.embedding_length"
    shown = printable(key, _SHOWN)
    pair: RawPair | None = fragment.by_key.get(key)
    if pair is None:
        raise WriterError("missing_embedding_length", f"there is no {shown}", artifact=name)
    width = fragment.integer(key) if pair.type in _WIDTH_TYPES else None
    if width is None or width <= 0:
        raise WriterError(
            "invalid_embedding_length",
            f"{shown} is {pair.type.name} {fragment.value(key)!r:.40};"
            " it needs to be a positive u8, u16, u32 or i32",
            artifact=name,
        )
    return width


def refuse_changed(source: Source) -> None:
    """ArtifactError `artifact_changed` for a shard that was touched since it was opened."""
    for shard in source.shards:
        if not shard.opened.still_same():
            raise ArtifactError(
                "artifact_changed", "the source changed while it was read", artifact=shard.name
            )
