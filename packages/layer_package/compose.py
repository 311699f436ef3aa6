"""Owns composing a stage's parts into one GGUF file: pairs, tensors in load order, the bytes.

It must not know caches nor where files lie: it takes opened parts and gives what the GGUF writer
takes. Memory: the headers of the parts and one piece of COPY_BYTES, whatever the parts hold.
`skippy.slice.stage_index` is always 0: which number a stage has in a topology is not content, and
two topologies share the file. Consumers take ownership from the manifest, not from slice keys.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine.artifacts.gguf_types import ALIGNMENT_KEY, GgufValue, ValueType
from engine.artifacts.gguf_writer import Pair, TensorSource
from engine.artifacts.slices import LayerRange
from packages.layer_package.errors import ContentError
from packages.layer_package.fragments import Fragment, FragmentTensor, pieces
from packages.layer_package.model import Artifact
from packages.layer_package.paths import OpenedFile
from packages.layer_package.roles import role_of
from packages.layer_package.selection import Selection

# Part of the key of a composed file: changes whenever the bytes that are composed change.
COMPOSER = "mesh-specialize-1"
COPY_BYTES = 4 << 20
_OWN_PREFIXES = ("skippy.slice.", "skippy.package.")
Step = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Part:
    """An opened part with its header."""

    artifact: Artifact
    opened: OpenedFile
    fragment: Fragment


@dataclass(frozen=True, slots=True)
class _Found:
    """A tensor and the part that holds it."""

    part: Part
    tensor: FragmentTensor


def composed_pairs(selection: Selection, parts: Sequence[Part]) -> list[Pair]:
    """The metadata part's pairs without slice keys, then the stage's and the package's own."""
    first = parts[0].fragment
    stage = LayerRange(
        0, selection.layer_start, selection.layer_end,
        selection.include_embeddings, selection.include_output,
    )  # fmt: skip
    kept = [
        (key, GgufValue(kind, payload))
        for key, kind, payload in first.pairs if not key.startswith(_OWN_PREFIXES)
    ]
    if all(key != ALIGNMENT_KEY for key, _ in kept):
        kept.append((ALIGNMENT_KEY, GgufValue.of(ValueType.UINT32, first.alignment)))
    return [
        *kept,
        *stage.pairs(),
        ("skippy.package.materialized", GgufValue.of(ValueType.BOOL, True)),
        ("skippy.package.part_count", GgufValue.of(ValueType.UINT32, len(parts))),
    ]


def composed_tensors(parts: Sequence[Part], step: Step) -> list[TensorSource]:
    """All tensors in load order, a repeated common one once; `step` gets bytes as they are copied.

    ContentError `conflicting_tensor` for a repeat that differs in type, shape or bytes,
    `misplaced_owned_tensor` for one in a part that may not hold it.
    """
    first: dict[str, _Found] = {}
    for part in parts:
        for tensor in part.fragment.tensors:
            found = _Found(part, tensor)
            _check_owner(found)
            if tensor.name in first:
                _check_repeat(first[tensor.name], found)
            else:
                first[tensor.name] = found
    # One buffer for all: the writer takes each piece before it asks for the next.
    buffer = bytearray(COPY_BYTES)
    return [
        TensorSource(
            f.tensor.name, f.tensor.dims, f.tensor.ggml_type, f.tensor.n_bytes,
            _pieces(f, buffer, step),
        )
        for f in first.values()
    ]  # fmt: skip


def _check_owner(found: _Found) -> None:
    """With one owner for each tensor, what repeats is common: a part is not listed twice."""
    role, artifact = role_of(found.tensor.name), found.part.artifact
    owner = (role.fragment, role.layer_index)
    if role.is_owned and owner != (artifact.role, artifact.layer_index):
        layer = "" if role.layer_index is None else f" {role.layer_index}"
        raise ContentError(
            "misplaced_owned_tensor",
            f"tensor {found.tensor.name!r:.90} belongs into {role.fragment}{layer}",
            pointer=artifact.pointer, artifact=artifact.path,
        )  # fmt: skip


def _check_repeat(before: _Found, again: _Found) -> None:
    facts = ("dims", "ggml_type", "n_bytes")
    is_equal = all(getattr(before.tensor, f) == getattr(again.tensor, f) for f in facts)
    if not is_equal or not _same_bytes(before, again):
        raise ContentError(
            "conflicting_tensor",
            f"tensor {again.tensor.name!r:.90} differs from the one in"
            f" {before.part.artifact.path}; a common tensor may be repeated only unchanged",
            artifact=again.part.artifact.path,
        )


def _same_bytes(one: _Found, other: _Found) -> bool:
    buffers = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    both = zip(_pieces(one, buffers[0]), _pieces(other, buffers[1]), strict=True)
    return all(a == b for a, b in both)


def _pieces(found: _Found, buffer: bytearray, step: Step | None = None) -> Iterator[memoryview]:
    """The tensor's bytes in pieces; each is good until the next is asked for."""
    tensor, part = found.tensor, found.part
    for piece in pieces(
        part.opened, part.artifact.path, tensor.offset, tensor.n_bytes, buffer
    ):
        yield piece
        if step is not None:
            step(len(piece))
