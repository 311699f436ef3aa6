"""Owns the proof of which parts a stage gets: embeddings, boundaries, ranges, projectors.

Long because the tables of the contract stand here row by row.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from packages.layer_package.checks import header_reader
from packages.layer_package.embedding_need import EmbeddingNeed
from packages.layer_package.errors import Report, SelectionError
from packages.layer_package.fragments import Fragment
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.selection import even_ranges, select_parts
from packages.layer_package.selection_hints import Hints
from tests.layer_package.check_cases import tiny
from tests.layer_package.package_cases import made, tiny_model

KINDS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tied": True},
    "mtp": {"mtp": True},
    "mtp_own": {"mtp": True, "mtp_embedding": True},
    "table": {"per_layer_table": True},
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], PackageDir]:
    """Three layers each, with and without hints; `table_all` names no reader of its table."""
    root = tmp_path_factory.mktemp("selection")
    everyone = tiny_model(per_layer_table=True)
    everyone = everyone._replace(tensors=[
        t for t in everyone.tensors if "per_layer_proj" not in t.name
    ])  # fmt: skip
    some = tiny_model()
    some.tensors.append(made("per_layer_token_embd.weight", (32, 48), 8))
    some.tensors.append(made("blk.1.ple_gate.weight", (32, 2)))
    kinds = {**KINDS, "table_all": {"model": everyone}, "table_one": {"model": some}}
    return {
        (name, hints): tiny(root / f"{name}{hints}", hints=hints, **kind)
        for name, kind in kinds.items() for hints in (True, False)
    }  # fmt: skip


class Row(NamedTuple):
    """A stage of a model, and whether it gets embeddings and output."""

    model: str
    start: int
    end: int
    choices: dict[str, Any]
    has_embeddings: bool
    has_output: bool


ROWS = {
    # owns the input boundary
    "first": Row("untied", 0, 1, {}, True, False),
    "whole": Row("untied", 0, 3, {}, True, True),
    "middle": Row("untied", 1, 2, {}, False, False),
    "last": Row("untied", 2, 3, {}, False, True),
    "input said": Row("untied", 1, 2, {"input_boundary": True}, True, False),
    "input denied": Row("untied", 0, 1, {"input_boundary": False}, False, False),
    "output said": Row("untied", 1, 2, {"output_boundary": True}, False, True),
    "output denied": Row("untied", 2, 3, {"output_boundary": False}, False, False),
    # owns the output boundary of a tied model
    "tied last": Row("tied", 2, 3, {}, True, True),
    "tied middle": Row("tied", 1, 2, {}, False, False),
    "tied output denied": Row("tied", 2, 3, {"output_boundary": False}, False, False),
    "tied output said": Row("tied", 1, 2, {"output_boundary": True}, True, True),
    # a prediction block without its own embedding
    "prediction": Row("mtp", 2, 3, {}, True, True),
    "prediction, not output": Row("mtp", 2, 3, {"output_boundary": False}, True, False),
    "trunk of a predicting model": Row("mtp", 1, 2, {}, False, False),
    "prediction with its own": Row("mtp_own", 2, 3, {}, False, True),
    # a reader of the per-layer table
    "table": Row("table", 1, 2, {}, True, False),
    "table read by all": Row("table_all", 1, 2, {}, True, False),
    "table read here": Row("table_one", 1, 2, {}, True, False),
    "table read elsewhere": Row("table_one", 2, 3, {}, False, True),
    # the other two policies
    "boundary, first": Row("tied", 0, 1, {"embeddings": "boundary"}, True, False),
    "boundary, tied last": Row("tied", 2, 3, {"embeddings": "boundary"}, False, True),
    "boundary, table": Row("table", 1, 2, {"embeddings": "boundary"}, False, False),
    "always_final, first": Row("untied", 0, 1, {"embeddings": "always_final"}, True, False),
    "always_final, last": Row("untied", 2, 3, {"embeddings": "always_final"}, True, True),
    "always_final, middle": Row("table", 1, 2, {"embeddings": "always_final"}, False, False),
}


@pytest.mark.parametrize("hints", [True, False], ids=["hints", "headers"])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_the_table_of_the_embeddings(
    packages: dict[tuple[str, bool], PackageDir], row: Row, hints: bool
) -> None:
    package = packages[row.model, hints]
    # with hints no header may be needed
    reader = None if hints else header_reader(package)
    found = select_parts(package.manifest, row.start, row.end, fragment_of=reader, **row.choices)
    assert (found.include_embeddings, found.include_output) == (row.has_embeddings, row.has_output)
    manifest = package.manifest
    expected = [manifest.metadata, *[manifest.embeddings] * row.has_embeddings]
    expected += [*manifest.layers[row.start : row.end], *[manifest.output] * row.has_output]
    assert list(found.parts) == expected
    assert found.artifact_bytes == sum(part.artifact_bytes for part in expected)
    assert not [note for note in found.notes if note.kind == "embeddings_assumed"]


@pytest.mark.parametrize(
    ("start", "end", "lost", "is_assumed"),
    [
        pytest.param(1, 2, "all", True, id="nothing at hand"),
        pytest.param(0, 2, "all", False, id="the input is owned anyway"),
        pytest.param(1, 2, "embeddings", True, id="the table's fragment"),
        pytest.param(1, 2, "layer1", True, id="the layer itself"),
        pytest.param(1, 2, "layer2", False, id="another layer"),
        pytest.param(1, 2, "output", False, id="an output that is not owned"),
        pytest.param(2, 3, "output", True, id="an output that is owned"),
    ],
)
def test_what_is_unknown_is_selected_with_a_note(
    packages: dict[tuple[str, bool], PackageDir], start: int, end: int, lost: str, is_assumed: bool
) -> None:
    package = packages["untied", False]
    read = header_reader(package)

    def fragment_of(artifact: Artifact) -> Fragment | None:
        name = artifact.role if artifact.layer_index is None else f"layer{artifact.layer_index}"
        return None if lost in ("all", name) else read(artifact)

    report = Report(fail_fast=True)
    found = select_parts(package.manifest, start, end, fragment_of=fragment_of, report=report)
    assert found.include_embeddings is (is_assumed or start == 0)
    assert [note.kind for note in found.notes] == ["embeddings_assumed"] * is_assumed
    assert list(found.notes) == [issue for issue in report if issue.severity == "note"]


def test_the_table_is_left_open_while_a_layer_that_may_read_it_is_missing(
    packages: dict[tuple[str, bool], PackageDir],
) -> None:
    for model, is_assumed in (("table_all", True), ("table_one", False)):
        package = packages[model, False]
        read, gone = header_reader(package), package.manifest.layers[0]
        found = select_parts(
            package.manifest, 2, 3, fragment_of=lambda a, r=read, g=gone: None if a is g else r(a)
        )
        assert bool(found.notes) is is_assumed, model


@pytest.mark.parametrize("kind", ["empty_layer_range", "layer_range_out_of_bounds"])
def test_ranges(packages: dict[tuple[str, bool], PackageDir], kind: str) -> None:
    bad = {"empty_layer_range": [(3, 3), (5, 2), (0, 0), (9, 9), (1, -1)],
           "layer_range_out_of_bounds": [(0, 4), (3, 4), (-1, 2), (0, 2**40)]}  # fmt: skip
    for start, end in bad[kind]:
        with pytest.raises(SelectionError) as caught:
            select_parts(packages["untied", True].manifest, start, end, report=Report())
        assert caught.value.kind == kind, (start, end)


def test_an_unknown_choice_is_refused(packages: dict[tuple[str, bool], PackageDir]) -> None:
    with pytest.raises(SelectionError) as caught:
        select_parts(packages["untied", True].manifest, 0, 1, embeddings="all")  # type: ignore[arg-type]
    assert caught.value.kind == "invalid_embeddings_choice"


@pytest.mark.parametrize("hints", [True, False], ids=["hints", "generation"])
@pytest.mark.parametrize(
    ("start", "end", "is_split"),
    [(0, 3, False), (1, 3, False), (0, 1, False), (0, 2, True), (1, 2, True), (2, 3, True)],
)
def test_a_cut_before_the_prediction_block_is_a_warning(
    packages: dict[tuple[str, bool], PackageDir], start: int, end: int, is_split: bool, hints: bool
) -> None:
    package = packages["mtp", hints]
    report = Report(fail_fast=True)
    found = select_parts(
        package.manifest, start, end, fragment_of=header_reader(package), report=report
    )
    assert [w.kind for w in found.warnings] == ["prediction_block_split"] * is_split
    assert report.kinds() == ["prediction_block_split"] * is_split
    # ending at the trunk is not owning the output
    assert found.include_output is (end == 3)


HINTS = {
    "another role map": {"role_map": 2, "tied_output": True},
    "no role map": {"tied_output": True},
    "tied is a number": {"role_map": 1, "tied_output": 1},
    "layers are text": {"role_map": 1, "tied_output": True, "prediction_layers": "all"},
    "a layer too high": {"role_map": 1, "tied_output": True, "prediction_layers": [3]},
    "a negative layer": {"role_map": 1, "tied_output": True, "per_layer_embedding_layers": [-1]},
    "a boolean layer": {"role_map": 1, "tied_output": True, "prediction_layers": [True]},
    "a list in a list": {"role_map": 1, "tied_output": True, "prediction_layers": [[0]]},
}


@pytest.mark.parametrize("hints", HINTS.values(), ids=HINTS.keys())
def test_unusable_hints_are_as_absent(
    packages: dict[tuple[str, bool], PackageDir], hints: dict[str, Any]
) -> None:
    manifest = replace(packages["untied", False].manifest, selection_hints=hints)
    assert Hints.of(manifest) == Hints()


def test_partial_hints_leave_the_rest_to_headers(
    packages: dict[tuple[str, bool], PackageDir],
) -> None:
    package = packages["table", False]
    hints = {"role_map": 1, "tied_output": False, "prediction_layers": [], "more": 1}
    manifest = replace(package.manifest, selection_hints=hints)
    found = select_parts(manifest, 1, 2, fragment_of=header_reader(package))
    assert found.include_embeddings
    assert not found.notes
    assert EmbeddingNeed(manifest, None).by_tied_output() is False


class Tower(NamedTuple):
    """A request for a projector and what comes of it: an index of an entry, a path, or a kind."""

    kinds: list[str]
    start: int
    choices: dict[str, Any]
    outcome: int | Path | str | None


GIVEN = Path("elsewhere/vision.gguf")
TOWERS = {
    "multimodal": Tower(["mmproj"], 0, {"multimodal": True}, 0),
    "the first of several": Tower(["other", "mmproj", "mmproj"], 0, {"multimodal": True}, 1),
    "text": Tower(["mmproj"], 0, {}, None),
    "text without entries": Tower([], 0, {}, None),
    "downstream": Tower(["mmproj"], 1, {"multimodal": True}, None),
    "none there": Tower([], 0, {"multimodal": True}, "projector_required"),
    "none usable": Tower(["other"], 0, {"multimodal": True}, "projector_required"),
    "given wins": Tower(["mmproj"], 0, {"multimodal": True, "projector_path": GIVEN}, GIVEN),
    "given without entries": Tower([], 0, {"projector_path": GIVEN}, GIVEN),
    "given downstream": Tower(
        ["mmproj"], 1, {"projector_path": GIVEN}, "projector_on_downstream_stage"
    ),
}


@pytest.mark.parametrize("tower", TOWERS.values(), ids=TOWERS.keys())
def test_projectors(packages: dict[tuple[str, bool], PackageDir], tower: Tower) -> None:
    manifest = _with_projectors(packages["untied", True].manifest, tower.kinds)
    if isinstance(tower.outcome, str):
        with pytest.raises(SelectionError) as caught:
            select_parts(manifest, tower.start, 3, **tower.choices)
        assert caught.value.kind == tower.outcome
        return
    found = select_parts(manifest, tower.start, 3, **tower.choices)
    plain = select_parts(manifest, tower.start, 3)
    # parts, flags and bytes are those of a text stage
    assert replace(found, projector=None, projector_path=None) == plain
    assert found.artifact_bytes == plain.artifact_bytes
    if isinstance(tower.outcome, int):
        assert found.projector is manifest.projectors[tower.outcome]
        assert found.files == (*found.parts, found.projector)
    else:
        assert (found.projector, found.projector_path) == (None, tower.outcome)


def _with_projectors(manifest: Manifest, kinds: list[str]) -> Manifest:
    made_of = manifest.metadata
    return replace(manifest, projectors=tuple(
        replace(made_of, role="projector", path=f"p{i}.gguf", kind=kind)
        for i, kind in enumerate(kinds)
    ))  # fmt: skip


def test_even_ranges() -> None:
    for n_layers, n_stages, sizes in ((7, 3, [3, 2, 2]), (3, 3, [1, 1, 1]), (5, 1, [5]),
                                      (61, 4, [16, 15, 15, 15])):  # fmt: skip
        ranges = even_ranges(n_layers, n_stages)
        assert [len(r) for r in ranges] == sizes
        assert [i for r in ranges for i in r] == list(range(n_layers))
    for n_stages, kind in ((0, "invalid_stage_count"), (-2, "invalid_stage_count"),
                           (4, "stage_count_exceeds_layer_count")):  # fmt: skip
        with pytest.raises(SelectionError) as caught:
            even_ranges(3, n_stages)
        assert caught.value.kind == kind
