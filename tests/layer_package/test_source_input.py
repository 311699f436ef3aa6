"""Owns the proof of which file the writer reads, and under which identity, from the hub cache."""

import json
from pathlib import Path

import pytest

from packages.layer_package.errors import PackageError
from packages.layer_package.shard_names import distribution_of, first_of, shard_name
from packages.layer_package.source_input import resolve_input
from packages.layer_package.write_options import WriteOptions
from packages.layer_package.writer import write_package
from tests.layer_package.package_cases import (
    ABI,
    REVISION,
    projector_gguf,
    source_gguf,
    source_shards,
)

REPO = "acme-lab/TinyDemo-GGUF"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A hub cache as its client makes it: snapshots of links into blobs, a ref."""
    repository = tmp_path / "hub/models--acme-lab--TinyDemo-GGUF"
    snapshot = repository / "snapshots" / REVISION
    made = [
        source_gguf(tmp_path / "a/TinyDemo-Q8_0.gguf"),
        projector_gguf(tmp_path / "a/mmproj-TinyDemo-Q8_0.gguf"),
        *source_shards(tmp_path / "a/Q4_K_M", stem="TinyDemo-Q4_K_M"),
    ]
    (repository / "blobs").mkdir(parents=True)
    for number, path in enumerate(made):
        blob = repository / f"blobs/{number}"
        path.rename(blob)
        link = snapshot / path.relative_to(tmp_path / "a")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(REVISION)
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("coordinate", "file", "distribution"),
    [
        (f"{REPO}:Q8_0", "TinyDemo-Q8_0.gguf", "Q8_0"),
        (f"{REPO}@main:q8_0", "TinyDemo-Q8_0.gguf", "q8_0"),
        (f"{REPO}@{REVISION}:Q4_K_M", "Q4_K_M/TinyDemo-Q4_K_M-00001-of-00003.gguf", "Q4_K_M"),
        (f"{REPO}:TinyDemo-Q8_0", "TinyDemo-Q8_0.gguf", "TinyDemo-Q8_0"),
    ],
)
def test_a_coordinate_in_the_cache(
    coordinate: str, file: str, distribution: str, cache: Path, tmp_path: Path
) -> None:
    options = WriteOptions(abi_version=ABI, hub_cache=cache)
    result = write_package(coordinate, tmp_path / "out", options)
    source = json.loads(result.manifest)["source_model"]
    assert source["repo"] == REPO
    assert source["revision"] == REVISION
    assert source["path"] == source["primary_file"] == file
    assert source["canonical_ref"] == f"{REPO}@{REVISION}/{file}"
    assert source["distribution_id"] == distribution
    assert json.loads(result.manifest)["model_id"] == coordinate


@pytest.mark.parametrize(
    ("coordinate", "kind"),
    [
        (f"{REPO}:Q9", "model_selector_not_found"),
        (f"{REPO}:mmproj-TinyDemo-Q8_0", "model_selector_not_found"),
        (REPO, "model_selector_ambiguous"),
        ("acme-lab/Other:Q8_0", "not_cached"),
        (f"{REPO}@{'f' * 40}", "not_cached"),
        (f"{REPO}@v9", "not_cached"),
        ("one", "invalid_model_coordinate"),
        ("a/b/c", "invalid_model_coordinate"),
        ("../x", "missing_source"),
        ("x/y.gguf", "missing_source"),
        ("", "missing_source"),
    ],
)
def test_coordinates_that_name_no_model(coordinate: str, kind: str, cache: Path) -> None:
    with pytest.raises(PackageError) as caught:
        resolve_input(coordinate, WriteOptions(hub_cache=cache))
    assert caught.value.kind == kind


def test_a_file_in_the_cache_brings_its_identity(cache: Path) -> None:
    folder = cache / f"models--acme-lab--TinyDemo-GGUF/snapshots/{REVISION}"
    options = WriteOptions(model_id="other/name:Q4")
    found = resolve_input(folder / "Q4_K_M/TinyDemo-Q4_K_M-00003-of-00003.gguf", options)
    identity = found.identity
    assert (identity.repo, identity.revision) == (REPO, REVISION)
    assert identity.primary_file == "Q4_K_M/TinyDemo-Q4_K_M-00001-of-00003.gguf"
    assert identity.distribution_id == "Q4"
    own = WriteOptions(model_id="other/name", source_repo="x/y", source_revision="r",
                       source_file="f.gguf")  # fmt: skip
    identity = resolve_input(folder / "TinyDemo-Q8_0.gguf", own).identity
    assert identity.canonical_ref == "x/y@r/f.gguf"
    assert identity.distribution_id == "f"


def test_a_plain_local_file_takes_its_repository_from_the_model_id(tmp_path: Path) -> None:
    path = source_gguf(tmp_path / "x.gguf")
    options = WriteOptions(model_id="a/b@v1:Q8", source_revision="r", source_file="d/x.gguf")
    identity = resolve_input(path, options).identity
    assert (identity.repo, identity.primary_file) == ("a/b", "d/x.gguf")


def test_names_of_shards() -> None:
    name = "d/M-00002-of-00010.gguf"
    assert shard_name(name) == ("d/M", 2, 10)
    assert first_of(name) == "d/M-00001-of-00010.gguf"
    assert distribution_of(name) == "M"
    for other in ("M-0002-of-00010.gguf", "M-00002-of-00010.bin", "M-00002-of-00010.gguf.x",
                  "M-00002-of-\u0660\u0660\u0660\u0660\u0661.gguf"):  # fmt: skip
        assert shard_name(other) is None
        assert first_of(other) == other
