"""Owns the facts by which a stage needs the embeddings although it does not own the input.

Three: the output is tied to them, a prediction block has none of its own, a layer reads the
per-layer table that lies with them. Each comes from the manifest's `selection_hints` or from the
headers of fragments, and is None where neither is at hand. It must not know what a stage is.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from packages.layer_package.fragments import Fragment
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.roles import is_prediction
from packages.layer_package.selection_hints import Hints

FragmentOf = Callable[[Artifact], Fragment | None]

TABLE = "per_layer_token_embd.weight"
_OWN_EMBEDDING = re.compile(r"blk\.[0-9]+\.nextn\.embed_tokens\.weight")
_TABLE_READER = re.compile(
    r"blk\.[0-9]+\.(ple_|per_layer_model_proj|per_layer_proj|per_layer_input_gate)"
)


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """What the names of one layer's tensors say."""

    is_prediction: bool
    has_own_embedding: bool
    reads_table: bool

    @classmethod
    def of(cls, fragment: Fragment) -> "BlockFacts":
        """The facts of a layer's fragment."""
        names = [tensor.name for tensor in fragment.tensors]
        return cls(
            any(map(is_prediction, names)),
            any(map(_OWN_EMBEDDING.fullmatch, names)),
            any(map(_TABLE_READER.match, names)),
        )


class EmbeddingNeed:
    """Answers for one package; keeps what it read, asks for a header only when a hint is absent."""

    def __init__(
        self, manifest: Manifest, fragment_of: FragmentOf | None, hints: Hints | None = None
    ) -> None:
        """`fragment_of` gives a fragment's header, or None where the file is not at hand; `hints`
        are the manifest's unless given."""
        self.manifest = manifest
        self.hints = Hints.of(manifest) if hints is None else hints
        self._fragment_of = fragment_of
        self._blocks: dict[int, BlockFacts | None] = {}

    def of_stage(self, layers: range, owns_output: bool) -> bool | None:
        """Whether a stage of these layers that does not own the input needs the embeddings."""
        return _any(self._answers(layers, owns_output))

    def _answers(self, layers: range, owns_output: bool) -> Iterator[bool | None]:
        if owns_output:
            yield self.by_tied_output()
        yield self.by_prediction(layers)
        yield self.by_table(layers)

    def by_tied_output(self) -> bool | None:
        """Whether the output is computed with the embeddings: there is no `output.weight`."""
        if self.hints.tied_output is not None:
            return self.hints.tied_output
        output = self._header(self.manifest.output)
        return None if output is None else is_tied(output)

    def by_prediction(self, layers: range) -> bool | None:
        """Whether a prediction block among the layers lacks an embedding of its own."""
        hinted, needs = self.hints.prediction_layers, self.hints.prediction_needs_embeddings
        if hinted is not None and needs is not None:
            return needs and not hinted.isdisjoint(layers)
        blocks = map(self._block, layers)
        return _any(None if b is None else b.is_prediction and not b.has_own_embedding
                    for b in blocks)  # fmt: skip

    def by_table(self, layers: range) -> bool | None:
        """Whether one of the layers reads the per-layer table.

        Where no layer of the whole model says so by a tensor's name, all of them do; that takes the
        headers of the other layers, so that a missing one leaves the answer open.
        """
        if self.hints.table_layers is not None:
            return not self.hints.table_layers.isdisjoint(layers)
        embeddings = self._header(self.manifest.embeddings)
        if embeddings is None:
            return None
        if not has_table(embeddings):
            return False
        read = _any(None if b is None else b.reads_table for b in map(self._block, layers))
        if read is not False:
            return read
        others = (i for i in range(self.manifest.layer_count) if i not in layers)
        elsewhere = _any(None if b is None else b.reads_table for b in map(self._block, others))
        return None if elsewhere is None else not elsewhere

    def _block(self, index: int) -> BlockFacts | None:
        if index not in self._blocks:
            header = self._header(self.manifest.layers[index])
            self._blocks[index] = None if header is None else BlockFacts.of(header)
        return self._blocks[index]

    def _header(self, artifact: Artifact) -> Fragment | None:
        return None if self._fragment_of is None else self._fragment_of(artifact)


def is_tied(output: Fragment) -> bool:
    """Whether the output fragment holds no `output.weight`."""
    return all(tensor.name != "output.weight" for tensor in output.tensors)


def has_table(embeddings: Fragment) -> bool:
    """Whether the embeddings fragment holds the per-layer table."""
    return any(tensor.name == TABLE for tensor in embeddings.tensors)


def _any(answers: Iterable[bool | None]) -> bool | None:
    """True if one is, without asking further; else None if one is open; else False."""
    is_open = False
    for answer in answers:
        if answer:
            return True
        is_open |= answer is None
    return None if is_open else False
