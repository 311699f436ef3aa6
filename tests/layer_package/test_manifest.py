"""Owns the proof that each malformed manifest is refused with its kind, and sound ones are read."""

import hashlib
from typing import Any

import pytest

from packages.layer_package.errors import ManifestError, Report
from packages.layer_package.json_text import json_bytes
from packages.layer_package.manifest import read_manifest
from tests.layer_package import manifest_cases as cases
from tests.layer_package.manifest_cases import changed, read
from tests.layer_package.package_cases import valid_manifest

MALFORMED = cases.MALFORMED + cases.MORE


def layers(n_layers: int) -> cases.Change:
    """A manifest of that many layers."""

    def change(manifest: dict[str, Any]) -> None:
        first = manifest["layers"][0]
        manifest["layer_count"] = n_layers
        manifest["layers"] = [
            {**first, "layer_index": i, "path": f"layers/layer-{i:05}.gguf"}
            for i in range(n_layers)
        ]

    return change


@pytest.mark.parametrize("case", MALFORMED, ids=[case.name for case in MALFORMED])
def test_a_malformed_manifest_is_refused(case: cases.Malformed) -> None:
    with pytest.raises(ManifestError) as caught:
        read(case.change)
    issue = caught.value.issue
    assert (issue.kind, issue.pointer) == (case.kind, case.pointer), issue
    assert type(caught.value) is case.family
    assert issue.message.isprintable()
    assert len(issue.message) < 400


@pytest.mark.parametrize("case", MALFORMED, ids=[case.name for case in MALFORMED])
def test_a_report_begins_with_the_same_refusal(case: cases.Malformed) -> None:
    report = Report()
    assert read(case.change, report) is None
    first = next(issue for issue in report if issue.severity == "error")
    assert (first.kind, first.pointer) == (case.kind, case.pointer)


@pytest.mark.parametrize("case", cases.WARNED, ids=[case.name for case in cases.WARNED])
def test_a_warning_leaves_a_manifest_valid(case: cases.Warned) -> None:
    report = Report()
    assert read(case.change, report) is not None
    assert [(i.kind, i.pointer, i.severity) for i in report] == [
        (case.kind, case.pointer, "warning")
    ]
    assert read(case.change) is not None


def test_m10_says_which_format_it_is() -> None:
    with pytest.raises(ManifestError) as caught:
        read(cases.put("/schema_version", 2))
    assert "package format 2" in (caught.value.issue.hint or "")


def test_m10_is_told_before_anything_that_depends_on_the_version() -> None:
    report = Report()
    assert read_manifest(b'{"schema_version": 2, "parts": []}', report=report) is None
    assert report.kinds() == ["unsupported_schema_version"]


@pytest.mark.parametrize("data", [b"[]", b'"x"', b"1", b"null"])
def test_m06_the_top_level_is_an_object(data: bytes) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(data)
    assert (caught.value.kind, caught.value.issue.pointer) == ("invalid_field_type", "")


def test_the_example_is_read_whole() -> None:
    report = Report()
    data = json_bytes(valid_manifest())
    found = read_manifest(data, runtime_abi=cases.RUNTIME_ABI, strict=True, report=report)
    assert found is not None
    assert not report.issues
    assert (found.model_id, found.layer_count) == ("acme-lab/TinyDemo-GGUF:Q8_0", 2)
    assert found.activation_width == 64
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert [(a.role, a.layer_index, a.path, a.pointer) for a in found.artifacts] == [
        ("metadata", None, "shared/metadata.gguf", "/shared/metadata"),
        ("embeddings", None, "shared/embeddings.gguf", "/shared/embeddings"),
        ("output", None, "shared/output.gguf", "/shared/output"),
        ("layer", 0, "layers/layer-00000.gguf", "/layers/0"),
        ("layer", 1, "layers/layer-00001.gguf", "/layers/1"),
    ]
    layer = found.layers[1]
    assert (layer.tensor_count, layer.tensor_bytes, layer.artifact_bytes) == (9, 12288, 14976)
    source = found.source_model
    assert source.files[0].size_bytes == 51904
    assert source.files[0].sha256 == source.sha256
    assert (source.repo, source.distribution_id) == ("acme-lab/TinyDemo-GGUF", "Q8_0")
    assert found.skippy_abi_version == "0.1.0"
    assert found.created_at_unix_secs is not None
    assert found.generation is found.selection_hints is None


def test_m28_layers_are_sorted_by_their_index_and_keep_their_place() -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["layers"].reverse()
        manifest["layers"][0]["path"] = "a.gguf"

    found = read(change)
    assert found is not None
    assert [(a.layer_index, a.pointer) for a in found.layers] == [
        (0, "/layers/1"), (1, "/layers/0")
    ]  # fmt: skip


def test_m40_digests_are_lower_case_in_the_record() -> None:
    def upper(manifest: dict[str, Any]) -> None:
        for entry in (manifest["layers"][0], manifest["source_model"]):
            entry["sha256"] = entry["sha256"].upper()

    found, plain = read(upper), read(lambda manifest: None)
    assert found is not None
    assert plain is not None
    assert found.layers[0].sha256 == plain.layers[0].sha256
    assert found.source_model == plain.source_model
    assert found.sha256 != plain.sha256


def test_what_the_reference_writer_leaves_open_is_read() -> None:
    def change(manifest: dict[str, Any]) -> None:
        source = manifest["source_model"]
        source["path"] = "/somewhere/else/TinyDemo-Q8_0.gguf"
        source["files"][0].update(size_bytes=None, sha256=None)
        source.update(repo=None, canonical_ref=None)
        manifest["layers"][0]["path"] = "layer-000.gguf"
        manifest["generation"] = None
        del manifest["created_at_unix_secs"]

    report = Report()
    found = read(change, report)
    assert found is not None
    assert not report.issues
    assert (found.source_model.repo, found.source_model.files[0].sha256) == (None, None)
    assert found.layers[0].path == "layer-000.gguf"
    assert found.generation is None


def test_members_that_are_not_known_are_ignored_and_kept() -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["zz"] = {"deep": [1, 2.5, None, "é"]}
        manifest["layers"][0]["codec"] = "none"
        manifest["source_model"]["files"][0]["etag"] = "x"
        manifest["generation"] = {"future": {"a": 1}}

    report = Report()
    data = changed(change)
    found = read_manifest(data, report=report)
    assert found is not None
    assert not report.issues
    assert json_bytes(found.document) == data
    assert found.generation == {"future": {"a": 1}}


def test_a_projector_of_a_kind_that_the_caller_knows() -> None:
    entries = [cases.projector(kind="vae"), cases.projector(path="b")]
    data = changed(cases.put("/projectors", entries))
    found = read_manifest(data, projector_kinds=("mmproj", "vae"))
    assert [(p.role, p.kind, p.pointer) for p in found.projectors] == [
        ("projector", "vae", "/projectors/0"), ("projector", "mmproj", "/projectors/1")
    ]  # fmt: skip
    assert found.artifacts[-2:] == found.projectors


def test_strict_needs_a_width() -> None:
    data = changed(cases.drop("/activation_width"))
    with pytest.raises(ManifestError) as caught:
        read_manifest(data, strict=True)
    assert caught.value.kind == "missing_activation_width"


def test_without_a_runtime_only_the_form_of_the_version_is_checked() -> None:
    assert read_manifest(changed(cases.put("/skippy_abi_version", "7.1"))) is not None
    with pytest.raises(ManifestError):
        read_manifest(changed(cases.put("/skippy_abi_version", "7")))


def test_the_largest_and_smallest_values_that_are_accepted() -> None:
    entry = {"tensor_count": 1_000_000, "tensor_bytes": 2**64 - 1, "artifact_bytes": 2**64 - 1}
    found = read(cases.both(
        lambda manifest: manifest["layers"][0].update(entry),
        lambda manifest: manifest["shared"]["output"].update(tensor_count=0, tensor_bytes=0),
        cases.put("/activation_width", 2**32 - 1), cases.put("/created_at_unix_secs", 0),
        cases.put("/source_model/files/0/size_bytes", 2**64 - 1),
    ))  # fmt: skip
    assert found is not None
    assert found.layers[0].artifact_bytes == 2**64 - 1
    assert (found.activation_width, found.created_at_unix_secs) == (2**32 - 1, 0)
    assert found.output.tensor_bytes == 0


def test_strict_reaches_the_generation_block() -> None:
    proposer = {"type": "ngram-cache", "ngram_min": 2, "ngram_max": 4, "history_scope": "request"}
    strategies = {"c": {"type": "ngram-cache", "proposer": "p"}}
    block = {"default": "c", "proposers": {"p": proposer}, "strategies": strategies}
    data = changed(cases.put("/generation", {"speculative_decoding": block}))
    report = Report()
    assert read_manifest(data, report=report) is not None
    assert report.issues
    with pytest.raises(ManifestError) as caught:
        read_manifest(data, strict=True)
    assert (caught.value.issue.pointer or "").startswith("/generation/speculative_decoding/")


def test_two_hundred_layers() -> None:
    found = read(layers(200))
    assert found is not None
    assert len(found.layers) == 200
