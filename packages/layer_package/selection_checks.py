"""Owns holding the advice on selection against the headers that were read.

It must not know files. A stage is refused only where its own parts prove that it lacks the
embeddings; a whole package for every hint that its tensors contradict.
"""

from collections.abc import Mapping

from packages.layer_package.embedding_need import BlockFacts, EmbeddingNeed, has_table, is_tied
from packages.layer_package.errors import ContentError, Report
from packages.layer_package.fragments import Fragment
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.selection import Selection
from packages.layer_package.selection_hints import Hints

_SHOWN_LAYERS = 8


def check_stage_hints(
    manifest: Manifest,
    selection: Selection,
    headers: Mapping[Artifact, Fragment],
    report: Report,
) -> None:
    """ContentError `selection_hints_mismatch` where the parts without the embeddings need them."""
    if selection.include_embeddings:
        return
    layers = range(selection.layer_start, selection.layer_end)
    if EmbeddingNeed(manifest, headers.get, Hints()).of_stage(layers, selection.include_output):
        report.add(ContentError(
            "selection_hints_mismatch",
            f"layers [{layers.start}, {layers.stop}) need the embeddings by their tensors, and were"
            " selected without them",
            pointer="/selection_hints", artifact=manifest.embeddings.path,
            hint="the package's hints are wrong; select with embeddings='always_final', or rewrite"
            " the package",
        ))  # fmt: skip


def check_hints(
    manifest: Manifest, headers: Mapping[Artifact, Fragment], report: Report
) -> None:
    """Every hint against the headers of the whole package.

    ContentError `selection_hints_mismatch`. A hint is left alone where a header is missing that
    would decide on it, for that file was reported already.
    """
    hints = Hints.of(manifest)
    output, embeddings = headers.get(manifest.output), headers.get(manifest.embeddings)
    if output is not None:
        _compare("tied_output", hints.tied_output, is_tied(output), report)
    if any(layer not in headers for layer in manifest.layers):
        return
    blocks = [BlockFacts.of(headers[layer]) for layer in manifest.layers]
    prediction = {i for i, block in enumerate(blocks) if block.is_prediction}
    _compare("prediction_layers", hints.prediction_layers, prediction, report)
    lacks = any(not blocks[i].has_own_embedding for i in prediction)
    _compare("prediction_needs_embeddings", hints.prediction_needs_embeddings, lacks, report)
    if embeddings is not None:
        readers = {i for i, block in enumerate(blocks) if block.reads_table}
        found = (readers or set(range(len(blocks)))) if has_table(embeddings) else set()
        _compare("per_layer_embedding_layers", hints.table_layers, found, report)


def _compare(
    member: str, hinted: bool | frozenset[int] | None, found: bool | set[int], report: Report
) -> None:
    if hinted is not None and hinted != found:
        report.add(ContentError(
            "selection_hints_mismatch",
            f"{member} says {_shown(hinted)}, the tensors say {_shown(found)}",
            pointer=f"/selection_hints/{member}",
        ))  # fmt: skip


def _shown(value: bool | frozenset[int] | set[int]) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    shown = ", ".join(map(str, sorted(value)[:_SHOWN_LAYERS]))
    return f"layers [{shown}{', ...' if len(value) > _SHOWN_LAYERS else ''}]"
