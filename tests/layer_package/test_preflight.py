"""Owns the proof of the preflight report: members, stages, and that it always answers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.errors import Cancelled
from packages.layer_package.preflight import preflight
from tests.layer_package.check_cases import flip, hub, local, tiny
from tests.layer_package.package_cases import change_manifest

# Names and order of the reference program.
MEMBERS = [
    "schema_version", "package_path", "valid", "model_id", "layer_count", "activation_width",
    "generation", "manifest_sha256", "checked_artifact_count", "missing_artifact_count",
    "issue_count", "issues", "artifacts", "stages",
]  # fmt: skip
LAYER = "layers/layer-00001.gguf"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tiny(tmp_path / "package", projector=True, n_layers=5, tied=True).root


def kinds(report: dict[str, Any]) -> list[str]:
    return [issue["kind"] for issue in report["issues"] if issue["severity"] == "error"]


def test_a_sound_package(root: Path) -> None:
    report = preflight(root, stages=2, verify_sha256=True, runtime_abi="0.1.39")
    assert list(report) == MEMBERS
    manifest = local(root).manifest
    assert (report["valid"], report["issue_count"], report["issues"]) == (True, 0, [])
    assert report["package_path"] == "package"
    assert (report["model_id"], report["layer_count"]) == (manifest.model_id, 5)
    assert report["manifest_sha256"] == manifest.sha256
    assert (report["checked_artifact_count"], report["missing_artifact_count"]) == (9, 0)
    assert report["artifacts"][3] == {
        "role": "layer", "layer_index": 0, "path": "layers/layer-00000.gguf", "present": True,
        "declared_artifact_bytes": manifest.layers[0].artifact_bytes,
        "actual_artifact_bytes": manifest.layers[0].artifact_bytes,
        "size_matches_manifest": True, "sha256_matches_manifest": True,
    }  # fmt: skip
    assert report["artifacts"][-1]["role"] == "projector"
    first, last = report["stages"]
    # the first of 5 % 2 stages has one layer more; a tied output brings the embeddings
    assert first["parts"] == ["metadata", "embeddings", "layer:0", "layer:1", "layer:2"]
    assert last["parts"] == ["metadata", "embeddings", "layer:3", "layer:4", "output"]
    assert (last["includes_embeddings"], last["includes_output"]) == (True, True)
    assert (last["stage_index"], last["layer_start"], last["layer_end"]) == (1, 3, 5)
    parts = [manifest.metadata, manifest.embeddings, *manifest.layers[3:], manifest.output]
    assert last["artifact_bytes"] == sum(part.artifact_bytes for part in parts)
    assert (last["part_count"], last["missing_parts"]) == (5, [])
    assert str(root.parent) not in json.dumps(report)


def test_what_is_missing_is_told_by_stage(root: Path) -> None:
    size = (root / LAYER).stat().st_size
    (root / LAYER).unlink()
    whole = preflight(root, stages=5)
    assert (whole["valid"], kinds(whole)) == (False, ["missing_artifact"])
    assert (whole["checked_artifact_count"], whole["missing_artifact_count"]) == (9, 1)
    entry = next(a for a in whole["artifacts"] if a["path"] == LAYER)
    assert (entry["present"], entry["actual_artifact_bytes"]) == (False, None)
    assert (entry["size_matches_manifest"], entry["sha256_matches_manifest"]) == (None, None)
    assert [stage["missing_parts"] for stage in whole["stages"]] == [[], ["layer:1"], [], [], []]
    stages = whole["stages"]
    assert stages[2]["artifact_bytes"] - stages[1]["artifact_bytes"] == size


def test_digests_are_taken_when_asked(root: Path, tmp_path: Path) -> None:
    flip(root / LAYER)
    assert preflight(root)["valid"]
    assert kinds(preflight(root, verify_sha256=True)) == ["artifact_sha256_mismatch"]
    # also of a package of a hub
    package = hub(tmp_path / "cache", root)
    assert preflight(package)["valid"]
    assert kinds(preflight(package, verify_sha256=True)) == ["artifact_sha256_mismatch"]


@pytest.mark.parametrize(("stages", "kind"), [
    (0, "invalid_stage_count"), (-1, "invalid_stage_count"),
    (6, "stage_count_exceeds_layer_count"),
])  # fmt: skip
def test_stage_counts(root: Path, stages: int, kind: str) -> None:
    report = preflight(root, stages=stages)
    assert (report["valid"], kinds(report), report["stages"]) == (False, [kind], [])
    assert len(preflight(root, stages=5)["stages"]) == 5
    assert preflight(root)["stages"] == []


@pytest.mark.parametrize("make", ["nothing", "text", "directory", "fifo", "newer"])
def test_a_manifest_that_is_none(tmp_path: Path, make: str) -> None:
    root = tmp_path / "package"
    root.mkdir()
    path = root / "model-package.json"
    if make == "text":
        path.write_text("{")
    elif make == "directory":
        path.mkdir()
    elif make == "fifo":
        os.mkfifo(path)
    elif make == "newer":
        tiny(root)
        change_manifest(root, lambda manifest: manifest.update(schema_version=2))
    report = preflight(root, stages=2)
    assert list(report) == MEMBERS
    expected = {"text": "invalid_manifest_json", "newer": "unsupported_schema_version"}
    assert kinds(report) == [expected.get(make, "missing_manifest")]
    assert (report["valid"], report["layer_count"], report["artifacts"]) == (False, None, [])
    assert str(tmp_path) not in json.dumps(report)


def test_issues_have_place_and_severity(root: Path) -> None:
    change_manifest(root, lambda manifest: manifest.pop("activation_width"))
    report = preflight(root)
    assert report["valid"]
    assert [issue["kind"] for issue in report["issues"]] == ["missing_activation_width"]
    assert list(report["issues"][0]) == [
        "severity", "kind", "pointer", "artifact", "message", "hint",
    ]  # fmt: skip
    assert kinds(preflight(root, strict=True)) == ["missing_activation_width"]


def test_cancelling(root: Path) -> None:
    with pytest.raises(Cancelled):
        preflight(root, cancelled=lambda: True)
