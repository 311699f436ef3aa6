"""Owns which parts of a package a stage loads, in which order, and the two flags of a native load.

It must not know whether the files are there or sound (`checks.py`), nor how headers are read: who
has them passes `fragment_of`. Choices: `include_embeddings` and `include_output` are the flags of
the load, so they equal "that part is selected"; a boundary that the caller states wins over the
one that the range gives.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packages.layer_package.embedding_need import EmbeddingNeed, FragmentOf
from packages.layer_package.errors import Issue, Report, SelectionError
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.projectors import pick_projector

Embeddings = Literal["auto", "boundary", "always_final"]
EMBEDDINGS = ("auto", "boundary", "always_final")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a stage of layers [layer_start, layer_end) loads.

    `parts` in load order: metadata, embeddings, layers ascending, output. `projector` an entry of
    the manifest or `projector_path` a file of the caller, never both. `notes` and `warnings` say
    what was assumed.
    """

    layer_start: int
    layer_end: int
    input_boundary: bool
    output_boundary: bool
    parts: tuple[Artifact, ...]
    include_embeddings: bool
    include_output: bool
    notes: tuple[Issue, ...] = ()
    warnings: tuple[Issue, ...] = ()
    projector: Artifact | None = None
    projector_path: Path | None = None

    @property
    def artifact_bytes(self) -> int:
        """Bytes of the parts' files; a projector does not count."""
        return sum(part.artifact_bytes for part in self.parts)

    @property
    def files(self) -> tuple[Artifact, ...]:
        """Every file of the package that the stage uses: the parts, then a projector."""
        return self.parts if self.projector is None else (*self.parts, self.projector)


@dataclass(frozen=True, slots=True)
class StageRequest:
    """Layers [layer_start, layer_end) and what `select_parts` is told of them."""

    layer_start: int
    layer_end: int
    input_boundary: bool | None = None
    output_boundary: bool | None = None
    embeddings: Embeddings = "auto"
    multimodal: bool = False
    projector_path: Path | None = None

    def select(
        self,
        manifest: Manifest,
        fragment_of: FragmentOf | None = None,
        report: Report | None = None,
    ) -> Selection:
        """The parts; see `select_parts`."""
        return select_parts(
            manifest, self.layer_start, self.layer_end, input_boundary=self.input_boundary,
            output_boundary=self.output_boundary, embeddings=self.embeddings,
            multimodal=self.multimodal, projector_path=self.projector_path,
            fragment_of=fragment_of, report=report,
        )  # fmt: skip


def select_parts(
    manifest: Manifest,
    layer_start: int,
    layer_end: int,
    *,
    input_boundary: bool | None = None,
    output_boundary: bool | None = None,
    embeddings: Embeddings = "auto",
    fragment_of: FragmentOf | None = None,
    multimodal: bool = False,
    projector_path: Path | None = None,
    report: Report | None = None,
) -> Selection:
    """The parts of layers [layer_start, layer_end).

    `embeddings`: "auto" what the stage needs; "boundary" the first stage alone; "always_final" the
    last one too. `multimodal` asks for a projector where the stage is the one that loads it.
    SelectionError `empty_layer_range`, `layer_range_out_of_bounds`, `projector_required`,
    `projector_on_downstream_stage`: raised whatever the report, for there is no selection then;
    warnings and notes go into the report too.
    """
    check_range(manifest, layer_start, layer_end)
    if embeddings not in EMBEDDINGS:
        raise SelectionError(
            "invalid_embeddings_choice",
            f"embeddings is {embeddings!r:.40}; it is one of {', '.join(EMBEDDINGS)}",
        )
    picked = pick_projector(
        manifest, layer_start, multimodal=multimodal, projector_path=projector_path
    )
    owns_input = layer_start == 0 if input_boundary is None else input_boundary
    owns_output = layer_end == manifest.layer_count if output_boundary is None else output_boundary
    found = Report()
    need = EmbeddingNeed(manifest, fragment_of)
    layers = range(layer_start, layer_end)
    with_embeddings = owns_input or (embeddings == "always_final" and owns_output)
    if not with_embeddings and embeddings == "auto":
        with_embeddings = _needs_embeddings(need, layers, owns_output, found)
    _warn_of_split(need, layers, found)
    if report is not None:
        report.issues.extend(found.issues)
    return Selection(
        layer_start, layer_end, owns_input, owns_output,
        tuple(_parts(manifest, layers, with_embeddings, owns_output)),
        with_embeddings, owns_output,
        tuple(issue for issue in found if issue.severity == "note"),
        tuple(issue for issue in found if issue.severity == "warning"),
        picked if isinstance(picked, Artifact) else None,
        picked if isinstance(picked, Path) else None,
    )  # fmt: skip


def check_range(manifest: Manifest, layer_start: int, layer_end: int) -> None:
    """Check 15. SelectionError `empty_layer_range` or `layer_range_out_of_bounds`."""
    shown = f"layers [{layer_start}, {layer_end})"
    if layer_start >= layer_end:
        raise SelectionError("empty_layer_range", f"{shown} hold none; a stage needs start < end")
    if layer_start < 0 or layer_end > manifest.layer_count:
        raise SelectionError(
            "layer_range_out_of_bounds",
            f"{shown} of a package with layers [0, {manifest.layer_count})",
        )


def even_ranges(n_layers: int, n_stages: int) -> list[range]:
    """An even split: the first `n_layers % n_stages` stages get one layer more.

    SelectionError `invalid_stage_count` below 1, `stage_count_exceeds_layer_count`.
    """
    if n_stages < 1:
        raise SelectionError("invalid_stage_count", f"{n_stages} stages; at least 1 is needed")
    if n_stages > n_layers:
        raise SelectionError(
            "stage_count_exceeds_layer_count",
            f"{n_stages} stages for {n_layers} layers; a stage needs one of its own",
        )
    share, rest = divmod(n_layers, n_stages)
    starts = [i * share + min(i, rest) for i in range(n_stages + 1)]
    return [range(starts[i], starts[i + 1]) for i in range(n_stages)]


def _needs_embeddings(
    need: EmbeddingNeed, layers: range, owns_output: bool, report: Report
) -> bool:
    """Whether a stage without the input needs them; yes, with a note, where that is unknown."""
    needed = need.of_stage(layers, owns_output)
    if needed is None:
        report.note(
            "embeddings_assumed",
            f"layers [{layers.start}, {layers.stop}) may need the embeddings: the package has no"
            " hints on it and a header that would tell is not at hand, so they are selected",
            artifact=need.manifest.embeddings.path,
        )
    return needed is not False


def _warn_of_split(need: EmbeddingNeed, layers: range, report: Report) -> None:
    """A prediction block reads the hidden state of the trunk's last layer: it belongs with it."""
    trunk = trunk_layers(need)
    if trunk is None or not 0 < trunk < need.manifest.layer_count:
        return
    if layers.start >= trunk or trunk <= layers.stop < need.manifest.layer_count:
        report.warn(
            "prediction_block_split",
            f"a stage of layers [{layers.start}, {layers.stop}) is cut off where the prediction"
            f" block begins, layer {trunk} of {need.manifest.layer_count}; keep it in the last"
            " stage",
        )


def trunk_layers(need: EmbeddingNeed) -> int | None:
    """Layers before the first prediction block as hints or the generation block say; None if not.

    Reads no header: it is for a warning only.
    """
    if need.hints.prediction_layers is not None:
        return min(need.hints.prediction_layers, default=None)
    return min(advertised_layers(need.manifest), default=None)


def advertised_layers(manifest: Manifest) -> Iterator[int]:
    """Layer indices of every native-mtp proposer or strategy of the generation block."""
    speculation = _mapping(_mapping(manifest.generation).get("speculative_decoding"))
    for group in ("proposers", "strategies"):
        for member in _mapping(speculation.get(group)).values():
            entry = _mapping(member)
            indices = entry.get("layer_indices")
            if entry.get("type") == "native-mtp" and isinstance(indices, list):
                yield from (i for i in indices if type(i) is int)


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _parts(
    manifest: Manifest, layers: range, with_embeddings: bool, with_output: bool
) -> Iterator[Artifact]:
    yield manifest.metadata
    if with_embeddings:
        yield manifest.embeddings
    yield from manifest.layers[layers.start : layers.stop]
    if with_output:
        yield manifest.output
