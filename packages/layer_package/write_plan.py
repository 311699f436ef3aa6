"""Owns what every fragment of a package will hold, byte by byte, before anything is written.

Output depends on the source's bytes alone. Pairs come from the source as they are (their records
are encoded once and shared by all fragments), tensors in source order, each at the next multiple of
the alignment, zero padding, the last one padded too. It must not know files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from engine.artifacts.gguf_types import ALIGNMENT_KEY, MAGIC, U32, U64, GgufValue, ValueType
from packages.layer_package.fragments import FragmentTensor, RawPair, pieces
from packages.layer_package.model import Role
from packages.layer_package.source_model import Source, SourceTensor, is_split_key

VERSION = 3
TOKENIZER_PREFIX = "tokenizer."
FIRST_LAYER_STAGE = 1000


@dataclass(frozen=True, slots=True)
class PairBlock:
    """Encoded pairs that several fragments begin with, and how many."""

    n_pairs: int
    data: bytes


@dataclass(frozen=True)
class FragmentPlan:
    """One fragment: `head` and `own_pairs` around the shared `block`, then tensor records.

    `tensors` of the source in its order; `path` in the package; sizes in bytes.
    """

    role: Role
    path: str
    layer_index: int | None
    tensors: tuple[SourceTensor, ...]
    alignment: int
    block: PairBlock
    own_pairs: bytes
    n_own_pairs: int

    @property
    def planned(self) -> tuple[FragmentTensor, ...]:
        """The tensors; their offsets are those in the source."""
        return tuple(item.tensor for item in self.tensors)

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of the tensors without padding."""
        return sum(item.tensor.n_bytes for item in self.tensors)

    @cached_property
    def artifact_bytes(self) -> int:
        """Bytes of the file."""
        data = sum(_padded(item.tensor.n_bytes, self.alignment) for item in self.tensors)
        return _padded(sum(map(len, self._header)), self.alignment) + data

    @cached_property
    def _header(self) -> tuple[bytes, ...]:
        counts = U64.pack(len(self.tensors)) + U64.pack(self.block.n_pairs + self.n_own_pairs)
        records, offset = [], 0
        for tensor, _, _ in self.tensors:
            dims = b"".join(map(U64.pack, tensor.dims))
            place = U32.pack(tensor.ggml_type) + U64.pack(offset)
            records.append(_text(tensor.name) + U32.pack(len(tensor.dims)) + dims + place)
            offset += _padded(tensor.n_bytes, self.alignment)
        head = MAGIC + U32.pack(VERSION) + counts
        return head, self.block.data, self.own_pairs + b"".join(records)

    def content(self, source: Source, buffer: bytearray) -> Iterator[bytes | memoryview]:
        """The file's bytes in pieces no larger than the header or `buffer`, which they share."""
        yield from self._header
        yield self._padding(sum(map(len, self._header)))
        for tensor, shard_index, _ in self.tensors:
            shard = source.shards[shard_index]
            yield from pieces(shard.opened, shard.name, tensor.offset, tensor.n_bytes, buffer)
            yield self._padding(tensor.n_bytes)

    def _padding(self, n_bytes: int) -> bytes:
        return bytes(-n_bytes % self.alignment)


def plan_fragments(source: Source, *, lean: bool = False) -> tuple[FragmentPlan, ...]:
    """Metadata, embeddings, output, then the layers: the order in which they are written.

    `lean` leaves `tokenizer.*` out of all but the metadata.
    """
    pairs = _source_pairs(source)
    full = _block(pairs)
    short = _block([p for p in pairs if not p.key.startswith(TOKENIZER_PREFIX)]) if lean else full
    owned = _owned(source)
    n_layers = source.layer_count
    shared: tuple[Role, Role, Role] = ("metadata", "embeddings", "output")
    plans = []
    for stage, role in enumerate(shared):
        ends = n_layers if role == "output" else 0
        own = _slice_pairs(stage, ends, ends, role)
        block = full if role == "metadata" else short
        plans.append(_plan(source, role, None, owned, block, own))
    for layer in range(n_layers):
        own = _slice_pairs(FIRST_LAYER_STAGE + layer, layer, layer + 1, "layer")
        plans.append(_plan(source, "layer", layer, owned, short, own))
    return tuple(plans)


def pair_bytes(source: Source) -> int:
    """Bytes of the encoded pairs that every fragment begins with."""
    return len(_block(_source_pairs(source)).data)


def artifact_path(role: Role, layer_index: int | None) -> str:
    """The path that the writer gives a fragment."""
    return f"shared/{role}.gguf" if layer_index is None else f"layers/layer-{layer_index:05d}.gguf"


Owned = dict[tuple[str, int | None], list[SourceTensor]]


def _owned(source: Source) -> Owned:
    owned: Owned = {}
    for item in source.tensors:
        owned.setdefault((item.role.fragment, item.role.layer_index), []).append(item)
    return owned


def _plan(
    source: Source, role: Role, layer_index: int | None, owned: Owned, block: PairBlock,
    own: Sequence[bytes],
) -> FragmentPlan:  # fmt: skip
    tensors = tuple(owned.get((role, layer_index), ()))
    path, alignment = artifact_path(role, layer_index), source.first.alignment
    return FragmentPlan(role, path, layer_index, tensors, alignment, block, b"".join(own), len(own))


def _source_pairs(source: Source) -> list[RawPair]:
    """What the source says of the model, with an explicit alignment."""
    pairs = [pair for pair in source.first.pairs if not is_split_key(pair.key)]
    if ALIGNMENT_KEY not in source.first.by_key:
        alignment = U32.pack(source.first.alignment)
        pairs.append(RawPair(ALIGNMENT_KEY, ValueType.UINT32, alignment))
    return pairs


def _slice_pairs(stage: int, start: int, end: int, role: str) -> list[bytes]:
    stem, i32, flag = "skippy.slice.", ValueType.INT32, ValueType.BOOL
    values = (
        ("stage_index", GgufValue.of(i32, stage)),
        ("layer_start", GgufValue.of(i32, start)),
        ("layer_end", GgufValue.of(i32, end)),
        ("include_embeddings", GgufValue.of(flag, role == "embeddings")),
        ("include_output", GgufValue.of(flag, role == "output")),
    )
    return [_record(RawPair(stem + key, v.type, bytes(v.payload))) for key, v in values]


def _block(pairs: Sequence[RawPair]) -> PairBlock:
    return PairBlock(len(pairs), b"".join(map(_record, pairs)))


def _record(pair: RawPair) -> bytes:
    return _text(pair.key) + U32.pack(pair.type) + pair.payload


def _text(text: str) -> bytes:
    raw = text.encode()
    return U64.pack(len(raw)) + raw


def _padded(n_bytes: int, alignment: int) -> int:
    return n_bytes + -n_bytes % alignment
