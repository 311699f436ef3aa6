"""Owns which package a reference becomes, what is downloaded for it, and when nothing is."""

import json
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.errors import ManifestError, PackageError, Report
from packages.layer_package.hub_package import NotCached
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.references import PackageRef
from packages.layer_package.resolve import repair_package, resolve_package
from packages.layer_package.selection import StageRequest
from tests.layer_package.hub_cases import (
    COMMIT,
    FOLDER,
    MOVING,
    OTHER_COMMIT,
    REF,
    FakeHub,
    cached,
    leftovers,
    manifest_of,
)
from tests.layer_package.package_cases import write_tiny_package

METADATA, EMBEDDINGS, OUTPUT = (
    f"shared/{name}.gguf" for name in ("metadata", "embeddings", "output")
)
LAYERS = [f"layers/layer-{i:05d}.gguf" for i in range(3)]
PROJECTOR = "projectors/mmproj-TinyDemo.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return FakeHub(write_tiny_package(tmp_path / "p", projector=True))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"scope": "manifest"}, []),
        ({"scope": "metadata"}, [METADATA]),
        ({"scope": "stage", "layers": (1, 2)}, [METADATA, LAYERS[1]]),
        ({"scope": "stage", "layers": (2, 3)}, [METADATA, LAYERS[2], OUTPUT]),
        ({"scope": "stage", "layers": (0, 1)}, [METADATA, EMBEDDINGS, LAYERS[0]]),
        ({"scope": "stage"}, [METADATA, EMBEDDINGS, *LAYERS, OUTPUT]),
        ({"scope": "stage", "stage": StageRequest(0, 1, multimodal=True)},
         [METADATA, EMBEDDINGS, LAYERS[0], PROJECTOR]),
        ({"scope": "package"}, [METADATA, EMBEDDINGS, OUTPUT, *LAYERS, PROJECTOR]),
    ],
    ids=["manifest", "metadata", "middle", "last", "first", "all layers", "projector", "package"],
)  # fmt: skip
def test_the_manifest_comes_first_and_then_only_what_the_scope_selects(
    hub: FakeHub, cache: Path, options: dict[str, Any], expected: list[str]
) -> None:
    package = resolve_package(REF, cache=cache, fetch=hub, **options)
    assert hub.paths == [MANIFEST_NAME, *expected]
    assert {request.revision for request in hub.requests} == {COMMIT}
    assert package.root == cache / FOLDER / "snapshots" / COMMIT
    assert package.manifest == manifest_of(hub.folder)
    for path in expected:
        assert (package.root / path).read_bytes() == (hub.folder / path).read_bytes()
    assert leftovers(cache) == []
    hub.requests.clear()
    assert resolve_package(REF, cache=cache, fetch=hub, **options) == package
    assert resolve_package(REF, cache=cache, **options) == package
    assert hub.paths == []


def test_a_second_stage_fetches_what_is_missing(hub: FakeHub, cache: Path) -> None:
    resolve_package(REF, scope="stage", layers=(0, 1), cache=cache, fetch=hub)
    hub.requests.clear()
    resolve_package(REF, scope="stage", layers=(0, 2), cache=cache, fetch=hub)
    assert hub.paths == [LAYERS[1]]


@pytest.mark.parametrize("how", ["no fetch", "argument", "environment"])
def test_nothing_is_downloaded_unasked(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    options: dict[str, Any] = {"fetch": hub, "scope": "stage", "layers": (1, 2), "cache": cache}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1" if how == "environment" else "0")
    if how == "no fetch":
        del options["fetch"]
    elif how == "argument":
        options["offline"] = True
    with pytest.raises(NotCached) as caught:
        resolve_package(REF, **options)
    assert caught.value.kind == "not_cached"
    assert caught.value.missing == (MANIFEST_NAME,)
    assert not cache.exists(), "and nothing is written"
    snapshot = cached(cache, hub.folder)
    (snapshot / LAYERS[1]).resolve().unlink()
    (snapshot / METADATA).unlink()
    with pytest.raises(NotCached) as caught:
        resolve_package(REF, **options)
    assert caught.value.missing == (METADATA, LAYERS[1])
    assert METADATA in str(caught.value)
    assert hub.paths == []


def test_a_long_list_of_missing_files_is_cut_in_the_message_alone(cache: Path) -> None:
    error = NotCached(PackageRef.parse(REF), [f"layers/{i}.gguf" for i in range(1000)], "so")
    assert len(error.missing) == 1000
    assert len(str(error)) < 1000
    assert str(error).endswith("and 968 more")


def test_a_whole_snapshot_needs_no_right_to_write(hub: FakeHub, cache: Path) -> None:
    cached(cache, hub.folder)
    before = sorted(cache.rglob("*"))
    resolve_package(REF, scope="package", cache=cache, fetch=hub)
    assert sorted(cache.rglob("*")) == before
    assert hub.paths == []


def test_a_moving_revision_is_warned_of_and_pinned(hub: FakeHub, cache: Path) -> None:
    report = Report(fail_fast=True)
    package = resolve_package(MOVING, scope="metadata", cache=cache, fetch=hub, report=report)
    assert report.kinds() == ["moving_revision"]
    assert report.valid
    assert package.root.name == COMMIT
    assert [(r.revision, r.path) for r in hub.requests] == [
        ("main", MANIFEST_NAME), (COMMIT, METADATA),
    ]  # fmt: skip
    assert (cache / FOLDER / "refs" / "main").read_text() == COMMIT
    again = Report()
    assert resolve_package(MOVING, scope="metadata", cache=cache, report=again) == package
    assert again.kinds() == ["moving_revision"]
    fixed = Report()
    resolve_package(REF, scope="metadata", cache=cache, report=fixed)
    resolve_package(MOVING + "@v1/rc", scope="metadata", cache=cache, fetch=hub, report=fixed)
    assert fixed.kinds() == []
    assert (cache / FOLDER / "refs" / "v1" / "rc").read_text() == COMMIT


def test_what_another_commit_has_is_linked_and_not_fetched(
    hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    resolve_package(REF, scope="package", cache=cache, fetch=hub)
    document = json.loads((hub.folder / MANIFEST_NAME).read_text())
    (hub.folder / MANIFEST_NAME).write_text(json.dumps(document))
    newer = FakeHub(hub.folder, OTHER_COMMIT)
    ref = f"hf://acme-lab/TinyDemo-layers@{OTHER_COMMIT}"
    package = resolve_package(ref, scope="package", cache=cache, fetch=newer)
    assert newer.paths == [MANIFEST_NAME]
    assert (package.root / LAYERS[0]).read_bytes() == (hub.folder / LAYERS[0]).read_bytes()
    assert resolve_package(REF, scope="package", cache=cache).root.name == COMMIT


def test_without_hints_the_embeddings_come_too(tmp_path: Path, hub: FakeHub, cache: Path) -> None:
    hub.folder = write_tiny_package(tmp_path / "q", hints=False)
    options: dict[str, Any] = {"scope": "stage", "layers": (1, 2), "cache": cache}
    resolve_package(REF, fetch=hub, **options)
    assert hub.paths == [MANIFEST_NAME, METADATA, EMBEDDINGS, LAYERS[1]]
    assert resolve_package(REF, **options).root.name == COMMIT


def test_the_expected_manifest_is_held_to(hub: FakeHub, cache: Path) -> None:
    good = manifest_of(hub.folder).sha256
    options: dict[str, Any] = {"scope": "manifest", "cache": cache, "fetch": hub}
    with pytest.raises(ManifestError) as caught:
        resolve_package(REF, expected_manifest_sha256="0" * 64, **options)
    assert caught.value.kind == "manifest_sha256_mismatch"
    assert not (cache / FOLDER / "snapshots").exists(), "what came is not installed"
    resolve_package(REF, expected_manifest_sha256=good.upper(), **options)
    with pytest.raises(ManifestError):
        resolve_package(REF, expected_manifest_sha256="0" * 64, **options)
    local = PackageRef("local", path=hub.folder)
    resolve_package(local, scope="manifest", expected_manifest_sha256=good)
    with pytest.raises(ManifestError):
        resolve_package(local, scope="manifest", expected_manifest_sha256="0" * 64)


def test_a_moved_revision_is_asked_for_anew_when_its_manifest_is_not_the_expected(
    hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    resolve_package(MOVING, scope="manifest", cache=cache, fetch=hub)
    newer = FakeHub(write_tiny_package(tmp_path / "q", n_layers=2), OTHER_COMMIT)
    expected = manifest_of(newer.folder).sha256
    with pytest.raises(ManifestError):
        resolve_package(MOVING, scope="manifest", cache=cache, expected_manifest_sha256=expected)
    package = resolve_package(
        MOVING, scope="manifest", cache=cache, fetch=newer, expected_manifest_sha256=expected
    )
    assert package.root.name == OTHER_COMMIT
    assert (cache / FOLDER / "refs" / "main").read_text() == OTHER_COMMIT
    assert (cache / FOLDER / "snapshots" / COMMIT / MANIFEST_NAME).exists(), "the old one stays"


def test_a_cached_file_of_the_wrong_length_is_fetched_anew(hub: FakeHub, cache: Path) -> None:
    snapshot = cached(cache, hub.folder)
    blob = (snapshot / LAYERS[0]).resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    resolve_package(REF, scope="stage", layers=(0, 1), cache=cache)
    resolve_package(REF, scope="stage", layers=(0, 1), cache=cache, fetch=hub)
    assert hub.paths == [LAYERS[0]]
    assert (snapshot / LAYERS[0]).read_bytes() == (hub.folder / LAYERS[0]).read_bytes()
    assert not blob.exists()
    assert len(list((cache / ".quarantine" / FOLDER).iterdir())) == 1


def test_a_local_folder_is_only_read(hub: FakeHub, cache: Path) -> None:
    (hub.folder / LAYERS[0]).unlink()
    ref = PackageRef("local", path=hub.folder)
    package = resolve_package(ref, scope="package", cache=cache, fetch=hub)
    assert (package.root, package.repository, package.ref) == (hub.folder, None, ref)
    assert resolve_package(str(hub.folder), scope="manifest").root == hub.folder
    assert hub.paths == []
    with pytest.raises(PackageError) as caught:
        repair_package(package, [LAYERS[0]], fetch=hub)
    assert caught.value.kind == "not_a_package_ref"


def test_a_single_model_file_is_no_package(hub: FakeHub) -> None:
    with pytest.raises(PackageError) as caught:
        resolve_package(str(hub.folder / LAYERS[0]), scope="manifest", fetch=hub)
    assert caught.value.kind == "not_a_package_ref"
