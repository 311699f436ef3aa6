"""Owns the proof that a file swapped while it is opened, or changed after, is noticed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from packages.layer_package.paths import open_artifact
from tests.layer_package.open_cases import (
    NAME,
    descriptors,
    hub_repository,
    local_package,
    refused,
    rename_over,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return local_package(tmp_path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return hub_repository(tmp_path)


@pytest.mark.timeout(10)
def test_what_becomes_a_fifo_after_the_look_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def swapped(path: bytes, *rest: int, **named: int) -> int:
        if path == b"layer-00000.gguf":
            (root / NAME).unlink()
            os.mkfifo(root / NAME)
        return really(path, *rest, **named)

    monkeypatch.setattr(os, "open", swapped)
    refused("artifact_not_file", root)


def test_a_folder_swapped_for_a_link_while_it_is_opened(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def swapped(path: bytes, *rest: int, **named: int) -> int:
        if path == b"layers" and not (root / "layers").is_symlink():
            os.rename(root / "layers", tmp_path / "away")
            (root / "layers").symlink_to(tmp_path / "away")
        return really(path, *rest, **named)

    monkeypatch.setattr(os, "open", swapped)
    refused("artifact_escapes_root", root)


def test_a_file_swapped_for_a_link_after_the_look(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def swapped(path: bytes, *rest: int, **named: int) -> int:
        if path == b"layer-00000.gguf":
            (root / NAME).unlink()
            (root / NAME).symlink_to(tmp_path / "secret")
        return really(path, *rest, **named)

    monkeypatch.setattr(os, "open", swapped)
    refused("artifact_escapes_root", root)


def test_a_blob_swapped_for_a_link_after_it_was_resolved(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    really = os.open

    def swapped(path: bytes, *rest: int, **named: int) -> int:
        if path == b"blobs":
            (repository / "blobs/0123").unlink()
            (repository / "blobs/0123").symlink_to(tmp_path / "secret")
        return really(path, *rest, **named)

    monkeypatch.setattr(os, "open", swapped)
    refused("artifact_escapes_root", repository / "snapshots/rev", NAME, repository)


def _rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"changed")


def _restore_times(path: Path) -> None:
    """Other content of the same length, with the times that one may set put back."""
    found = path.stat()
    _rewrite(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def _to_link(path: Path) -> None:
    os.rename(path, path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def _swap_folder(path: Path) -> None:
    os.rename(path.parent, path.parent.with_name("old"))
    shutil.copytree(path.parent.with_name("old"), path.parent)


def _fifo_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES = [
    _rewrite, rename_over, _restore_times, _to_link, _swap_folder, Path.unlink,
    lambda path: path.chmod(0o600), lambda path: os.truncate(path, 3),
    lambda path: os.truncate(path, 8), _fifo_instead,
]  # fmt: skip


@pytest.mark.timeout(10)
@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_a_file_that_changes_between_check_and_use(
    root: Path, change: Callable[[Path], object]
) -> None:
    past = 1_600_000_000_000_000_000
    os.utime(root / NAME, ns=(past, past))
    with open_artifact(root, NAME) as opened:
        assert opened.still_same()
        before = descriptors()
        change(root / NAME)
        assert not opened.still_same()
        assert descriptors() <= before
    assert not opened.still_same()


def test_a_blob_that_is_replaced(repository: Path) -> None:
    with open_artifact(repository / "snapshots/rev", NAME, repository=repository) as opened:
        rename_over(repository / "blobs/0123")
        assert not opened.still_same()


def test_reading_is_no_change_nor_is_another_working_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_artifact(Path("package"), NAME) as opened:
        os.pread(opened.fd, 7, 0)
        (root / "layers/new.gguf").write_bytes(b"x")
        monkeypatch.chdir("/")
        assert opened.still_same()
