"""Owns the tests of the hidden partial file: who may continue it, and what is left of it."""

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from packages.layer_package.errors import Cancelled
from packages.layer_package.transfer import partial as subject
from packages.layer_package.transfer.partial import Partial


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir())


def left(tmp_path: Path, n_bytes: int, name: str = "1.1") -> Path:
    path = tmp_path / f".file.{name}.part"
    path.write_bytes(bytes(n_bytes))
    return path


def test_what_grows_is_hidden_and_what_is_installed_is_whole(tmp_path: Path, folder: int) -> None:
    (tmp_path / "file").write_bytes(b"old")
    part = Partial.create(folder, "file")
    part.write(b"hello ")
    part.write(b"world")
    (hidden,) = set(names(tmp_path)) - {"file"}
    assert hidden.startswith(f".file.{os.getpid()}.")
    assert stat.S_IMODE((tmp_path / hidden).stat().st_mode) == 0o600
    assert (tmp_path / "file").read_bytes() == b"old"
    assert part.sha256() == hashlib.sha256(b"hello world").hexdigest()
    part.install()
    part.close()
    part.discard()
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"hello world"


def test_installing_syncs_the_file_before_and_the_folder_after_the_rename(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real_sync(descriptor)

    def replace(*names: object, **folders: object) -> None:
        calls.append("rename")
        real_replace(*names, **folders)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    part = Partial.create(folder, "file")
    part.write(b"x")
    part.install()
    assert calls == ["file", "rename", "folder"]


def test_a_partial_that_is_closed_stays_unless_it_is_empty(tmp_path: Path, folder: int) -> None:
    Partial.create(folder, "file").close()
    assert names(tmp_path) == []
    part = Partial.create(folder, "file")
    part.write(b"x")
    part.close()
    assert len(names(tmp_path)) == 1
    again = Partial.resume(folder, "file", 1)
    assert again.n_bytes == 1
    again.discard()
    assert names(tmp_path) == []


def test_resume_takes_the_largest_that_fits_and_deletes_what_is_larger(
    tmp_path: Path, folder: int
) -> None:
    for i, n_bytes in enumerate((3, 10, 7, 11)):
        left(tmp_path, n_bytes, f"1.{i}")
    part = Partial.resume(folder, "file", 10)
    assert part.n_bytes == 10
    assert names(tmp_path) == [".file.1.0.part", ".file.1.1.part", ".file.1.2.part"]
    # nobody else gets it while it is held
    other = Partial.resume(folder, "file", 10)
    assert other.n_bytes == 7
    part.close()
    other.close()


def test_no_limit_means_to_begin_anew(tmp_path: Path, folder: int) -> None:
    left(tmp_path, 5)
    part = Partial.resume(folder, "file", -1)
    assert part.n_bytes == 0
    part.close()
    assert names(tmp_path) == []


def test_a_partial_that_was_installed_before_it_was_locked_does_not_grow(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left(tmp_path, 5)
    real = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        real(descriptor, operation)
        if not (tmp_path / "file").exists():
            path.rename(tmp_path / "file")
            path.with_name("other").write_bytes(b"")
            path.with_name("other").rename(path)

    monkeypatch.setattr(subject.fcntl, "flock", late)
    part = Partial.resume(folder, "file", 10)
    assert part.n_bytes == 0
    part.write(b"x" * 9)
    part.close()
    assert (tmp_path / "file").read_bytes() == bytes(5)


def test_a_new_partial_that_another_takes_at_once_is_left_to_it(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, held = fcntl.flock, []

    def taken(descriptor: int, operation: int) -> None:
        if not held:
            (name,) = names(tmp_path)
            held.append(os.open(tmp_path / name, os.O_RDWR))
            real(held[0], operation)
        real(descriptor, operation)

    monkeypatch.setattr(subject.fcntl, "flock", taken)
    part = Partial.create(folder, "file")
    part.write(b"mine")
    assert os.fstat(held[0]).st_size == 0
    os.close(held[0])
    part.discard()


def test_the_digest_can_be_cancelled(folder: int) -> None:
    part = Partial.create(folder, "file")
    part.write(b"x")
    with pytest.raises(Cancelled):
        part.sha256(lambda: True)
    part.discard()


def test_a_name_that_leaves_no_room_for_the_rest_is_a_failure(folder: int) -> None:
    with pytest.raises(OSError):
        Partial.create(folder, "x" * 250)
