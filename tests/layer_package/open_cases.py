"""Owns a local package and a hub cache's repository with one file each, and how opening fails."""

import os
from pathlib import Path

import pytest

from packages.layer_package.errors import ArtifactError
from packages.layer_package.paths import OpenedFile, open_artifact

NAME = "layers/layer-00000.gguf"


def local_package(tmp_path: Path) -> Path:
    """A local package with one file, `NAME`, and a file beside the package, `secret`."""
    folder = tmp_path / "package"
    (folder / "layers").mkdir(parents=True)
    (folder / NAME).write_bytes(b"content")
    (tmp_path / "secret").write_bytes(b"secret")
    return folder


def hub_repository(tmp_path: Path) -> Path:
    """A hub cache's folder of one repository: a blob, and a snapshot whose file is a link to it."""
    folder = tmp_path / "hub/models--a--b"
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs/0123").write_bytes(b"content")
    (folder / "snapshots/rev/layers").mkdir(parents=True)
    (folder / "snapshots/rev" / NAME).symlink_to("../../../blobs/0123")
    return folder


def content(opened: OpenedFile) -> bytes:
    with opened:
        return os.pread(opened.fd, 100, 0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def refused(kind: str, root: Path, path: str = NAME, repository: Path | None = None) -> None:
    """Refused with that kind, naming the path and no place of this machine; nothing stays open."""
    before = descriptors()
    with pytest.raises(ArtifactError) as caught:
        open_artifact(root, path, repository=repository)
    assert caught.value.kind == kind
    assert caught.value.issue.artifact == path
    assert str(root) not in str(caught.value)
    assert descriptors() == before


def rename_over(path: Path) -> None:
    """Put another file with the same content in its place."""
    path.with_suffix(".new").write_bytes(b"content")
    os.replace(path.with_suffix(".new"), path)
