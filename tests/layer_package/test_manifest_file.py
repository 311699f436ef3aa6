"""Owns the proof of check 1: which file is a manifest, and that no other is read."""

import os
from pathlib import Path

import pytest

from packages.layer_package import manifest_file
from packages.layer_package.errors import ManifestError, Report
from packages.layer_package.json_text import json_bytes
from packages.layer_package.manifest import load_manifest
from packages.layer_package.model import MAX_MANIFEST_BYTES
from tests.layer_package.package_cases import valid_manifest

NAME = "model-package.json"
VALID = json_bytes(valid_manifest())


def refused(kind: str, root: Path, repository: Path | None = None) -> str:
    with pytest.raises(ManifestError) as caught:
        load_manifest(root, repository=repository)
    assert type(caught.value) is ManifestError
    assert (caught.value.kind, caught.value.issue.artifact) == (kind, NAME)
    assert str(root) not in str(caught.value)
    report = Report()
    assert load_manifest(root, repository=repository, report=report) is None
    assert report.kinds() == [kind]
    return caught.value.issue.message


def test_m01_no_manifest(tmp_path: Path) -> None:
    assert "not there" in refused("missing_manifest", tmp_path)
    refused("missing_manifest", tmp_path / "none")


@pytest.mark.timeout(10)
def test_m02_no_regular_file(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert "directory" in refused("missing_manifest", tmp_path)
    (tmp_path / NAME).rmdir()
    os.mkfifo(tmp_path / NAME)
    assert "FIFO" in refused("missing_manifest", tmp_path)


def test_m03_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).touch()
    os.truncate(tmp_path / NAME, MAX_MANIFEST_BYTES + 1)
    monkeypatch.setattr(os, "pread", lambda *_: pytest.fail("it was read"))
    assert str(MAX_MANIFEST_BYTES + 1) in refused("manifest_too_large", tmp_path)


def test_m03_a_file_that_grows_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).write_bytes(VALID)
    monkeypatch.setattr(manifest_file, "MAX_MANIFEST_BYTES", 5000)
    monkeypatch.setattr(os, "pread", lambda fd, n, at: b" " * min(n, 1000))
    assert len(manifest_file.read_manifest_file(tmp_path)) == 5001


def test_short_reads_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).write_bytes(VALID)
    really = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: really(fd, min(n, 7), at))
    assert load_manifest(tmp_path).layer_count == 2


def test_a_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    (tmp_path / NAME).write_bytes(VALID)
    monkeypatch.setattr(os, "pread", fails)
    assert "Input/output error" in refused("missing_manifest", tmp_path)


def test_a_link_is_followed_in_a_snapshot_only(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b/snapshots/rev"
    snapshot.mkdir(parents=True)
    blob = tmp_path / "models--a--b/blobs/x"
    blob.parent.mkdir()
    blob.write_bytes(VALID)
    (snapshot / NAME).symlink_to("../../blobs/x")
    assert load_manifest(snapshot, repository=tmp_path / "models--a--b").layer_count == 2
    assert "link" in refused("missing_manifest", snapshot)
    refused("missing_manifest", snapshot, tmp_path / "models--other")


def test_options_and_report_are_passed_on(tmp_path: Path) -> None:
    manifest = valid_manifest()
    del manifest["activation_width"]
    (tmp_path / NAME).write_bytes(json_bytes(manifest))
    report = Report()
    assert load_manifest(tmp_path, report=report) is not None
    assert report.kinds() == ["missing_activation_width"]
    with pytest.raises(ManifestError, match="missing_activation_width"):
        load_manifest(tmp_path, strict=True)
    with pytest.raises(ManifestError, match="incompatible_abi_version"):
        load_manifest(tmp_path, runtime_abi="1.0.0")
