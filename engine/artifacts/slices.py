"""Owns cutting a model file into layer slices and joining parts: roles, plan, slice, join.

Knows tensor names only by their role, and no architecture. Contract: the serving ABI's section on
model files. Errors: InvalidArgument for a bad plan or an output that is an input, ModelError for a
part that cannot be opened, IoFailure for a failed write.
"""

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from engine.artifacts.gguf import GgufFile, GgufTensor, open_gguf
from engine.artifacts.gguf_types import ALIGNMENT_KEY, GgufValue, ValueType
from engine.artifacts.gguf_writer import Pair, TensorSource, write_gguf
from engine.artifacts.mapped_file import PathLike
from engine.artifacts.output_file import refuse_input_as_output
from engine.errors import InvalidArgument

SPLIT_KEYS = frozenset({"split.no", "split.count", "split.tensors.count"})
_MAX_INT32 = 2**31 - 1


class Role(IntEnum):
    """What a tensor is for, numbered as the serving ABI numbers it. TOKENIZER is never given."""

    UNKNOWN = 0
    METADATA = 1
    TOKENIZER = 2
    EMBEDDING = 3
    LAYER = 4
    FINAL_NORM = 5
    OUTPUT = 6


class TensorRole(NamedTuple):
    """A role, and the layer for LAYER; -1 for every other role."""

    role: Role
    layer_index: int


_LAYER_NAMES = re.compile(r"blk\.([0-9]+)\..*|cache_.*_l([0-9]+)", re.DOTALL)
_NAMED_ROLES = {
    "token_embd.weight": Role.EMBEDDING,
    "per_layer_token_embd.weight": Role.EMBEDDING,
    "output.weight": Role.OUTPUT,
    "output.bias": Role.OUTPUT,
    "output_norm.weight": Role.FINAL_NORM,
    "output_norm.bias": Role.FINAL_NORM,
}


def tensor_role(name: str | None) -> TensorRole:
    """Role by name alone: UNKNOWN without a name, METADATA for a name that says nothing else."""
    if name is None:
        return TensorRole(Role.UNKNOWN, -1)
    found = _LAYER_NAMES.fullmatch(name)
    if found:
        digits = (found[1] or found[2]).lstrip("0") or "0"
        # The index is an int32; a number beyond it is no layer of any model.
        if len(digits) <= 10 and int(digits) <= _MAX_INT32:
            return TensorRole(Role.LAYER, int(digits))
    return TensorRole(_NAMED_ROLES.get(name, Role.METADATA), -1)


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers [layer_start, layer_end) of one stage, and whether it has the two ends."""

    stage_index: int
    layer_start: int
    layer_end: int
    include_embeddings: bool
    include_output: bool

    def holds(self, tensor: GgufTensor) -> bool:
        """Whether a slice of this range has the tensor."""
        role, layer_index = tensor_role(tensor.name)
        if role == Role.LAYER:
            return self.layer_start <= layer_index < self.layer_end
        if role == Role.EMBEDDING:
            return self.include_embeddings
        return role == Role.METADATA or self.include_output

    def pairs(self) -> list[Pair]:
        """The metadata by which a slice describes itself."""
        numbers = ("stage_index", "layer_start", "layer_end")
        flags = ("include_embeddings", "include_output")
        return [
            *(_pair(f"skippy.slice.{n}", ValueType.INT32, getattr(self, n)) for n in numbers),
            *(_pair(f"skippy.slice.{n}", ValueType.BOOL, getattr(self, n)) for n in flags),
        ]


class SlicePlan:
    """Layer ranges by stage, in the order they were added."""

    def __init__(self) -> None:
        """An empty plan."""
        self._ranges: list[LayerRange] = []

    def add_layer_range(
        self,
        stage_index: int,
        layer_start: int,
        layer_end: int,
        include_embeddings: bool,
        include_output: bool,
    ) -> None:
        """Add [layer_start, layer_end); InvalidArgument when negative, reversed or not int32."""
        if min(stage_index, layer_start) < 0 or layer_start > layer_end:
            raise InvalidArgument(
                f"stage {stage_index} with layers {layer_start} to {layer_end}:"
                " none may be negative, and the start may not pass the end"
            )
        if max(stage_index, layer_end) > _MAX_INT32:
            raise InvalidArgument(
                f"stage {stage_index} with layers {layer_start} to {layer_end}:"
                f" the limit is {_MAX_INT32}"
            )
        ends = (include_embeddings, include_output)
        self._ranges.append(LayerRange(stage_index, layer_start, layer_end, *ends))

    def range_of(self, stage_index: int) -> LayerRange:
        """The first range added for the stage; InvalidArgument when there is none."""
        for layers in self._ranges:
            if layers.stage_index == stage_index:
                return layers
        raise InvalidArgument(f"no range for stage {stage_index} among {len(self._ranges)}")


def write_slice(file: GgufFile, plan: SlicePlan, stage_index: int, out_path: PathLike) -> None:
    """Write the stage's tensors with all metadata but the split keys, and the slice's own keys."""
    layers = plan.range_of(stage_index)
    refuse_input_as_output(out_path, file.file_ids())
    kept = [tensor for tensor in file.tensors if layers.holds(tensor)]
    _write(out_path, file, layers.pairs(), kept)


def open_parts(paths: Sequence[PathLike]) -> GgufFile:
    """Several files as one model: the first part's metadata and alignment, all tensors in order.

    Where a tensor name occurs again, the first one counts.
    """
    if not paths:
        raise InvalidArgument("0 parts, at least 1 is needed")
    parts: list[GgufFile] = []
    with contextlib.ExitStack() as opened:
        for path in paths:
            parts.append(opened.enter_context(open_gguf(path)))
        opened.pop_all()
    return GgufFile(
        [file for part in parts for file in part.files],
        parts[0].metadata,
        _first_of_each_name(tensor for part in parts for tensor in part.tensors),
        parts[0].alignment,
    )


def write_from_parts(paths: Sequence[PathLike], out_path: PathLike) -> None:
    """Write what `open_parts` sees as one file, marked as made from that many parts."""
    with open_parts(paths) as model:
        refuse_input_as_output(out_path, model.file_ids())
        added = [
            _pair("skippy.package.materialized", ValueType.BOOL, True),
            _pair("skippy.package.part_count", ValueType.UINT32, len(paths)),
        ]
        _write(out_path, model, added, model.tensors)


def _first_of_each_name(tensors: Iterable[GgufTensor]) -> list[GgufTensor]:
    first: dict[str, GgufTensor] = {}
    for tensor in tensors:
        first.setdefault(tensor.name, tensor)
    return list(first.values())


def _write(
    out_path: PathLike, source: GgufFile, added: Sequence[Pair], tensors: Sequence[GgufTensor]
) -> None:
    """Source metadata without what is split or added anew, an explicit alignment, `added`."""
    dropped = SPLIT_KEYS | {key for key, _ in added}
    pairs = {key: value for key, value in source.metadata.items() if key not in dropped}
    pairs.setdefault(ALIGNMENT_KEY, GgufValue.of(ValueType.UINT32, source.alignment))
    copies = [TensorSource.copy_of(tensor) for tensor in tensors]
    write_gguf(out_path, [*pairs.items(), *added], copies, source.alignment)


def _pair(key: str, kind: ValueType, value: int | bool) -> Pair:
    return key, GgufValue.of(kind, value)
