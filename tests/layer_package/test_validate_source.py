"""Owns the proof of what holding a package against its source finds, and of the result.

Long because the result has many members and each has its fault.
"""

import hashlib
import json
import random
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package import validate_source
from packages.layer_package.errors import ArtifactError, Cancelled, PackageError
from packages.layer_package.validate_source import validate_package
from tests.layer_package.check_cases import flip, hub, local
from tests.layer_package.package_cases import (
    D_MODEL,
    change_manifest,
    gguf_bytes,
    made,
    read_json,
    source_gguf,
    source_shards,
    tiny_model,
    write_manifest,
    write_tiny_package,
)
from tests.layer_package.source_table import (
    CASES,
    KINDS,
    LAYER,
    Case,
    Q,
    added,
    layer_of,
    other_byte,
)

# Names and order of the reference program, with ours between.
MEMBERS = [
    "valid", "full_tensor_count", "layer_count", "manifest_layer_count_matches_model",
    "activation_width_matches_model", "expected_activation_width", "manifest_activation_width",
    "manifest_sha256", "source_sha256_matches_manifest", "required_owned_tensor_count",
    "missing_owned_tensors", "duplicate_owned_tensors", "misplaced_owned_tensors",
    "payload_mismatches", "checked_artifact_count", "artifacts", "checked_projector_count",
    "projectors", "missing_layers", "duplicate_layers", "issues",
]  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return source_gguf(tmp_path / "full.gguf", **KINDS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tiny_package(tmp_path / "package", projector=True, **KINDS)


def kinds(result: dict[str, Any]) -> list[str]:
    return [issue["kind"] for issue in result["issues"] if issue["severity"] == "error"]


def test_a_sound_package(source: Path, root: Path) -> None:
    result = validate_package(source, root)
    assert list(result) == MEMBERS
    model = tiny_model(**KINDS)
    manifest = read_json(root)
    facts = {
        "valid": True, "full_tensor_count": len(model.tensors), "layer_count": 3,
        "manifest_layer_count_matches_model": True, "activation_width_matches_model": True,
        "expected_activation_width": D_MODEL, "manifest_activation_width": D_MODEL,
        "source_sha256_matches_manifest": True,
        "required_owned_tensor_count": len(model.tensors) - 1, "missing_owned_tensors": [],
        "duplicate_owned_tensors": [], "misplaced_owned_tensors": [], "payload_mismatches": [],
        "checked_artifact_count": 6, "checked_projector_count": 1, "missing_layers": [],
        "duplicate_layers": [], "issues": [], "manifest_sha256": local(root).manifest.sha256,
    }  # fmt: skip
    assert {name: result[name] for name in facts} == facts
    layer = manifest["layers"][1]
    assert result["artifacts"][4] == {
        "path": LAYER, "tensor_count": layer["tensor_count"],
        "owned_tensor_count": layer["tensor_count"], "tensor_bytes": layer["tensor_bytes"],
        "artifact_bytes": layer["artifact_bytes"], "sha256_matches_manifest": True,
        "tensor_count_matches_manifest": True, "tensor_bytes_matches_manifest": True,
        "artifact_bytes_matches_manifest": True, "missing_from_full": [],
    }  # fmt: skip
    assert result["artifacts"][0]["owned_tensor_count"] == 0
    (projector,) = result["projectors"]
    assert (projector["kind"], projector["sha256_matches_manifest"]) == ("mmproj", True)
    assert str(root.parent) not in json.dumps(result)


@pytest.mark.parametrize("kinds_of", [
    {"tied": True}, {"mtp": True, "mtp_embedding": True}, {"per_layer_table": True},
    {"alignment": 64}, {"every_type": True}, {"rope_table": True},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("repeat_common", [False, True], ids=["ours", "reference"])
def test_other_models(tmp_path: Path, kinds_of: dict[str, Any], repeat_common: bool) -> None:
    full = source_gguf(tmp_path / "full.gguf", **kinds_of)
    root = write_tiny_package(tmp_path / "p", repeat_common=repeat_common, **kinds_of)
    result = validate_package(full, root)
    assert (result["valid"], result["issues"]) == (True, [])


def test_a_hub_package_and_a_sharded_source(tmp_path: Path, root: Path) -> None:
    shards = source_shards(tmp_path / "shards", **KINDS)
    package = hub(tmp_path / "cache", root)
    # the manifest is of the single file
    assert set(kinds(validate_package(shards[1], package))) == {
        "source_sha256_mismatch", "source_file_not_found",
    }  # fmt: skip

    def name_shards(manifest: dict[str, Any]) -> None:
        files = [
            {"path": f"some/folder/{path.name}", "size_bytes": path.stat().st_size,
             "sha256": hashlib.sha256(path.read_bytes()).hexdigest().upper()}
            for path in shards
        ]  # fmt: skip
        manifest["source_model"].update(
            path=files[0]["path"], primary_file=files[0]["path"], sha256=files[0]["sha256"],
            files=files,
        )  # fmt: skip

    change_manifest(root, name_shards)
    for path in shards:
        result = validate_package(path, root)
        assert (result["valid"], result["issues"]) == (True, [])
    # the primary file need not be the first
    change_manifest(root, lambda document: document["source_model"].update(
        primary_file=shards[1].name, sha256=hashlib.sha256(shards[1].read_bytes()).hexdigest(),
    ))  # fmt: skip
    assert validate_package(shards[0], root)["source_sha256_matches_manifest"]
    flip(shards[2])
    result = validate_package(shards[0], root)
    # that of a shard which is not the primary file
    assert kinds(result) == ["source_sha256_mismatch", "payload_mismatch"]
    assert result["source_sha256_matches_manifest"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_differs_from_the_source(source: Path, root: Path, case: Case) -> None:
    case.change(root)
    result = validate_package(source, root)
    assert list(result) == MEMBERS
    assert (kinds(result), result["valid"]) == (case.kinds, not case.kinds)
    assert {name: result[name] for name in case.members} == case.members


def test_the_entry_of_a_file_with_a_stranger_or_without_its_bytes(source: Path, root: Path) -> None:
    layer_of(added("blk.1.extra.weight"))(root)
    (root / "layers/layer-00002.gguf").unlink()
    entries = {a["path"]: a for a in validate_package(source, root)["artifacts"]}
    assert entries[LAYER]["missing_from_full"] == ["blk.1.extra.weight"]
    assert entries[LAYER]["owned_tensor_count"] == entries[LAYER]["tensor_count"] - 1
    lost = entries["layers/layer-00002.gguf"]
    assert lost["tensor_count"] is lost["artifact_bytes"] is lost["owned_tensor_count"] is None
    assert not any(value for name, value in lost.items() if name.endswith("_matches_manifest"))


def test_width_and_depth_are_options(source: Path, root: Path) -> None:
    layer_of(other_byte(Q, 0))(root)
    change_manifest(root, lambda document: document.update(activation_width=65))
    assert kinds(validate_package(source, root, deep=False)) == []
    assert kinds(validate_package(source, root, deep=False, strict=True)) == [
        "activation_width_mismatch"
    ]


def test_a_package_of_another_model(tmp_path: Path, root: Path) -> None:
    full = source_gguf(tmp_path / "other.gguf", n_layers=4, **KINDS)
    result = validate_package(full, root)
    assert {"source_sha256_mismatch", "source_size_mismatch", "layer_count_mismatch",
            "missing_owned_tensor", "metadata_pair_mismatch"} <= {*kinds(result)}  # fmt: skip
    assert not result["manifest_layer_count_matches_model"]
    assert not result["source_sha256_matches_manifest"]


def test_a_refused_manifest_still_tells_its_layers(source: Path, root: Path) -> None:
    document = read_json(root)
    document["layers"][1]["layer_index"] = 2
    write_manifest(root, document)
    result = validate_package(source, root)
    assert list(result) == MEMBERS
    assert not result["valid"]
    assert {"duplicate_layer", "missing_layer"} <= {*kinds(result)}
    assert (result["missing_layers"], result["duplicate_layers"]) == ([1], [2])
    document["layer_count"] = 2**32 - 1
    write_manifest(root, document)
    assert len(validate_package(source, root)["missing_layers"]) == 1000
    (root / "model-package.json").write_text("[]")
    assert kinds(validate_package(source, root)) == ["invalid_field_type"]
    shutil.rmtree(root)
    assert kinds(validate_package(source, root)) == ["missing_manifest"]


def test_a_source_that_cannot_be_used_is_raised(tmp_path: Path, root: Path) -> None:
    for path in (tmp_path / "none.gguf", root, root / "model-package.json"):
        with pytest.raises(PackageError):
            validate_package(path, root)


def test_a_source_that_changes_is_raised(
    source: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = validate_source.check_package

    def and_touch(*args: Any) -> None:
        real(*args)
        flip(source)

    monkeypatch.setattr(validate_source, "check_package", and_touch)
    with pytest.raises(ArtifactError) as caught:
        validate_package(source, root)
    assert caught.value.kind == "artifact_changed"


def test_progress_and_cancelling(source: Path, root: Path) -> None:
    seen: list[tuple[int, int]] = []
    validate_package(source, root, progress=lambda *at: seen.append(at))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > source.stat().st_size
    n_asked = 0

    def count() -> bool:
        nonlocal n_asked
        n_asked += 1
        return False

    validate_package(source, root, cancelled=count)
    for stop in range(0, n_asked, 7):
        left = iter([False] * stop)
        with pytest.raises(Cancelled):
            validate_package(source, root, cancelled=lambda left=left: next(left, True))


def test_payloads_are_compared_in_constant_memory(tmp_path: Path) -> None:
    """A tensor of 24 MiB, so several pieces; the peak stays at a few buffers."""
    big = made("blk.0.big.weight", (1,))._replace(
        dims=(6 << 20,), data=random.Random(0).randbytes(24 << 20)
    )
    model = tiny_model(n_layers=1)
    model = model._replace(tensors=[*model.tensors, big])
    full = tmp_path / "full.gguf"
    full.write_bytes(gguf_bytes(*model))
    changed = bytearray(big.data)
    changed[(17 << 20) + 5] ^= 1
    other = model._replace(tensors=[*model.tensors[:-1], big._replace(data=bytes(changed))])
    root = write_tiny_package(tmp_path / "p", model=other)
    del changed, other, model, big
    tracemalloc.start()
    result = validate_package(full, root)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result["payload_mismatches"] == [
        {"path": "layers/layer-00000.gguf", "tensor": "blk.0.big.weight", "offset": (17 << 20) + 5}
    ]
    assert peak < 18 << 20
