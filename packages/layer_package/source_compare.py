"""Owns comparing fragments with the source model: names, places, layouts, pairs, payload bytes.

It must not know how files are examined (`examine.py`) nor the form of the result
(`validate_source.py`). Payloads are compared by pieces of 4 MiB in two buffers, whatever a tensor's
size. Each kind of finding is one issue for a file, with the first names; the lists are whole.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from engine.artifacts.gguf_types import ALIGNMENT_KEY
from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import ContentError, Report
from packages.layer_package.fragments import (
    PIECE_BYTES,
    Fragment,
    FragmentTensor,
    RawPair,
    pieces,
)
from packages.layer_package.model import Artifact
from packages.layer_package.paths import OpenedFile
from packages.layer_package.placement import belongs
from packages.layer_package.source_model import Source, SourceTensor, is_split_key

Headers = Mapping[Artifact, Fragment]

_SHOWN, _MAX_LISTED = 80, 8
_TOKENIZER = "tokenizer."


@dataclass(slots=True)
class Ownership:
    """How often each owned tensor of the source lies in the package. Names in source order."""

    required: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    duplicate: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)


def ownership(source: Source, headers: Headers, report: Report) -> Ownership:
    """Every owned tensor exactly once, every common one in the metadata.

    ContentError `missing_owned_tensor`, `missing_common_tensor`; what lies twice or in a wrong
    fragment is in the lists alone, for the check of placement reports it.
    """
    holders: dict[str, list[Artifact]] = {}
    for artifact, header in headers.items():
        for tensor in header.tensors:
            holders.setdefault(tensor.name, []).append(artifact)
    found = Ownership()
    common = []
    for tensor, _, role in source.tensors:
        holding = holders.get(tensor.name, [])
        if not role.is_owned:
            if all(artifact.role != "metadata" for artifact in holding):
                common.append(tensor.name)
            continue
        found.required.append(tensor.name)
        if not holding:
            found.missing.append(tensor.name)
        elif not any(belongs(role, artifact) for artifact in holding):
            found.misplaced.append(tensor.name)
        if len(holding) > 1:
            found.duplicate.append(tensor.name)
    _add(report, "missing_owned_tensor", found.missing, "of the source in no fragment", None)
    _add(report, "missing_common_tensor", common, "of the source not in the metadata fragment",
         next((a for a in headers if a.role == "metadata"), None))  # fmt: skip
    return found


def not_in_source(
    source_names: Mapping[str, object], artifact: Artifact, header: Fragment, report: Report
) -> list[str]:
    """Names of its tensors that the source lacks. ContentError `tensor_not_in_source`."""
    names = [t.name for t in header.tensors if t.name not in source_names]
    _add(report, "tensor_not_in_source", names, "that the source lacks", artifact)
    return names


def check_pairs(source: Source, artifact: Artifact, header: Fragment, report: Report) -> None:
    """Metadata pairs equal to the source's, bit for bit. ContentError `metadata_pair_mismatch`.

    Pairs of the split and of slices do not count, in whatever order the rest is. A fragment may
    state the alignment that it has; one that is not the metadata may lack all tokenizer pairs.
    """
    wanted, found = _kept(source.first.pairs), _kept(header.pairs)
    if ALIGNMENT_KEY not in wanted and header.alignment == source.first.alignment:
        found.pop(ALIGNMENT_KEY, None)
    if artifact.role != "metadata" and not any(key.startswith(_TOKENIZER) for key in found):
        wanted = {key: pair for key, pair in wanted.items() if not key.startswith(_TOKENIZER)}
    differing = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
    _add(report, "metadata_pair_mismatch", differing, "unlike the source's", artifact, "pairs")


def _kept(pairs: Iterable[RawPair]) -> dict[str, RawPair]:
    return {pair.key: pair for pair in pairs if not is_split_key(pair.key)}


@dataclass(frozen=True, slots=True)
class PayloadMismatch:
    """A tensor whose bytes differ from the source's, first at `offset` of its own data."""

    path: str
    tensor: str
    offset: int

    def as_json(self) -> dict[str, str | int]:
        """Its members."""
        return {"path": self.path, "tensor": self.tensor, "offset": self.offset}


@dataclass(slots=True)
class TensorComparer:
    """Compares the tensors of fragments with those of the source.

    `advance(n_bytes)` is called after each piece; it may raise to stop.
    """

    source: Source
    report: Report
    deep: bool
    advance: Callable[[int], None]
    mismatches: list[PayloadMismatch] = field(default_factory=list)
    _originals: dict[str, SourceTensor] = field(init=False)
    _buffers: tuple[bytearray, bytearray] = field(
        default_factory=lambda: (bytearray(PIECE_BYTES), bytearray(PIECE_BYTES))
    )

    def __post_init__(self) -> None:
        """The source's tensors by name."""
        self._originals = {entry.tensor.name: entry for entry in self.source.tensors}

    def compare(self, artifact: Artifact, header: Fragment, opened: OpenedFile) -> None:
        """ContentError `tensor_layout_mismatch` for type or shape, `payload_mismatch` for bytes."""
        layouts, payloads = [], []
        for tensor in header.tensors:
            original = self._originals.get(tensor.name)
            if original is None:
                continue
            if (tensor.ggml_type, tensor.dims) != (
                original.tensor.ggml_type, original.tensor.dims
            ):  # fmt: skip
                layouts.append(tensor.name)
            elif self.deep:
                offset = self._first_difference(
                    opened, artifact.path, tensor, original.tensor, original.shard_index
                )
                if offset is not None:
                    payloads.append(tensor.name)
                    self.mismatches.append(PayloadMismatch(artifact.path, tensor.name, offset))
        _add(self.report, "tensor_layout_mismatch", layouts,
             "of another type or shape than in the source", artifact)  # fmt: skip
        _add(self.report, "payload_mismatch", payloads,
             "whose bytes differ from the source's", artifact)  # fmt: skip

    def _first_difference(
        self, opened: OpenedFile, path: str, tensor: FragmentTensor, original: FragmentTensor,
        shard_index: int,
    ) -> int | None:  # fmt: skip
        shard = self.source.shards[shard_index]
        mine, its = self._buffers
        done = 0
        for piece in pieces(opened, path, tensor.offset, tensor.n_bytes, mine):
            at = 0
            # a read may give less than was asked for, on either side
            for other in pieces(
                shard.opened, shard.name, original.offset + done, len(piece), its
            ):
                a = np.frombuffer(piece[at : at + len(other)], np.uint8)
                differs = a != np.frombuffer(other, np.uint8)
                if differs.any():
                    return done + at + int(differs.argmax())
                at += len(other)
            done += len(piece)
            self.advance(len(piece))
        return None


def _add(
    report: Report, kind: str, names: list[str], what: str, artifact: Artifact | None,
    noun: str = "tensors",
) -> None:  # fmt: skip
    if not names:
        return
    listed = ", ".join(printable(name, _SHOWN) for name in names[:_MAX_LISTED])
    more = ", ..." if len(names) > _MAX_LISTED else ""
    report.add(ContentError(
        kind, f"{len(names)} {noun} {what}: {listed}{more}",
        pointer=None if artifact is None else artifact.pointer,
        artifact=None if artifact is None else artifact.path,
    ))  # fmt: skip
