"""Owns the proof that opening a package's file never leaves the package nor waits."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from packages.layer_package import opened_file
from packages.layer_package.errors import ArtifactError, ManifestError
from packages.layer_package.paths import open_artifact, open_file
from tests.layer_package.open_cases import (
    NAME,
    content,
    descriptors,
    hub_repository,
    local_package,
    refused,
    rename_over,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return local_package(tmp_path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return hub_repository(tmp_path)


def test_a_file(root: Path) -> None:
    before = descriptors()
    with open_artifact(root, NAME) as opened:
        found = os.stat(root / NAME)
        assert opened.n_bytes == 7
        assert tuple(opened.identity) == (
            found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        )  # fmt: skip
        assert opened.fd > 2
        assert not os.get_inheritable(opened.fd)
        assert content(opened) == b"content"
    assert opened.fd == -1
    opened.close()
    assert descriptors() == before


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "layers/../../secret", "a\0b", ""])
def test_an_unsafe_path_never_reaches_the_file_system(
    root: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched(*_: object, **__: object) -> None:
        raise AssertionError("the file system was asked")

    for name in ("open", "stat", "lstat", "readlink"):
        monkeypatch.setattr(os, name, touched)
    with pytest.raises(ManifestError) as caught:
        open_artifact(root, path)
    assert caught.value.kind == "unsafe_artifact_path"


def test_missing(root: Path, tmp_path: Path) -> None:
    refused("missing_artifact", root, "layers/other.gguf")
    refused("missing_artifact", root, "other/layer.gguf")
    refused("missing_artifact", root, f"{NAME}/inside-a-file")
    refused("missing_artifact", tmp_path / "none")
    refused("missing_artifact", tmp_path / "secret", "x")


def _socket(path: Path) -> None:
    # A path of a socket has at most some 100 bytes, so it is bound from its own folder.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, _socket])
@pytest.mark.parametrize("hub", [False, True])
def test_m51_what_is_no_file_is_refused_without_waiting(
    root: Path, repository: Path, make: Callable[[Path], object], hub: bool
) -> None:
    (root / NAME).unlink()
    make(root / NAME)
    refused("artifact_not_file", root, repository=repository if hub else None)
    make(repository / "blobs/special")
    snapshot = repository / "snapshots/rev"
    (snapshot / "link").symlink_to("../../blobs/special")
    refused("artifact_not_file", snapshot, "link", repository)


def test_a_device_is_never_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.open
    opened: list[object] = []

    def noted(path: bytes, *rest: int, **named: int) -> int:
        opened.append(path)
        return really(path, *rest, **named)

    monkeypatch.setattr(os, "open", noted)
    refused("artifact_not_file", Path("/dev"), "null")
    assert b"null" not in opened


@pytest.mark.parametrize(
    "target", ["../../secret", "layer-1.gguf", "/etc/hostname", "loop", "nowhere"]
)
def test_m52_no_link_in_a_local_package(root: Path, target: str) -> None:
    (root / "layers/layer-1.gguf").write_bytes(b"x")
    (root / "layers/loop").symlink_to("loop")
    (root / NAME).unlink()
    (root / NAME).symlink_to(target)
    refused("artifact_escapes_root", root)
    refused("artifact_escapes_root", root, "layers/loop")


@pytest.mark.parametrize("hub", [False, True])
def test_no_linked_folder_anywhere(root: Path, repository: Path, hub: bool) -> None:
    os.rename(root / "layers", root / "real")
    (root / "layers").symlink_to("real")
    refused("artifact_escapes_root", root, repository=root if hub else None)
    refused("artifact_escapes_root", root, "layers/none", root if hub else None)
    assert content(open_artifact(root, "real/layer-00000.gguf")) == b"content"


def test_the_root_may_be_reached_by_links(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(root.name)
    assert content(open_artifact(tmp_path / "other", NAME)) == b"content"


def test_m53_a_link_of_a_snapshot_into_its_own_repository(repository: Path) -> None:
    snapshot = repository / "snapshots/rev"
    with open_artifact(snapshot, NAME, repository=repository) as opened:
        assert opened.identity.inode == os.stat(repository / "blobs/0123").st_ino
        assert opened.still_same()
        assert content(opened) == b"content"
    refused("artifact_escapes_root", snapshot)


def test_m53_absolute_links_chains_and_plain_files(repository: Path, tmp_path: Path) -> None:
    snapshot = repository / "snapshots/rev"
    (snapshot / "absolute").symlink_to(repository / "blobs/0123")
    (repository / "blobs/alias").symlink_to("0123")
    (snapshot / "chain").symlink_to("../../blobs/alias")
    (snapshot / "plain").write_bytes(b"content")
    (tmp_path / "cache").symlink_to("hub")
    for name in ("absolute", "chain", "plain"):
        assert content(open_artifact(snapshot, name, repository=repository)) == b"content"
        other = tmp_path / "cache/models--a--b"
        assert content(open_artifact(snapshot, name, repository=other)) == b"content"


def test_m54_a_link_out_of_the_repository(repository: Path, tmp_path: Path) -> None:
    snapshot = repository / "snapshots/rev"
    evil = tmp_path / "hub/models--a--b-evil/blobs"
    evil.mkdir(parents=True)
    (evil / "0123").write_bytes(b"other")
    (repository / "blobs/out").symlink_to(evil / "0123")
    (repository / "folder").symlink_to(evil)
    for number, target in enumerate(
        ["../../../models--a--b-evil/blobs/0123", str(evil / "0123"), "../../blobs/out",
         "../../folder/0123", "/etc/passwd"]
    ):  # fmt: skip
        (snapshot / f"link{number}").symlink_to(target)
        refused("artifact_escapes_root", snapshot, f"link{number}", repository)


def test_links_to_nothing_and_links_without_end(repository: Path) -> None:
    snapshot = repository / "snapshots/rev"
    (snapshot / "dangling").symlink_to("../../blobs/none")
    refused("missing_artifact", snapshot, "dangling", repository)
    (snapshot / "loop").symlink_to("loop")
    refused("artifact_escapes_root", snapshot, "loop", repository)
    (repository / "blobs/c0").symlink_to("0123")
    for n in range(1, 60):
        (repository / f"blobs/c{n}").symlink_to(f"c{n - 1}")
    (snapshot / "long").symlink_to("../../blobs/c59")
    refused("artifact_escapes_root", snapshot, "long", repository)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(root: Path) -> None:
    (root / NAME).chmod(0)
    refused("artifact_unreadable", root)


def test_what_the_system_refuses(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(ArtifactError) as caught:
        open_artifact(root, NAME)
    assert caught.value.kind == "artifact_unreadable"
    assert "Too many open files" in caught.value.issue.message


def test_standard_descriptors_are_left_alone_where_the_host_closed_them(root: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from packages.layer_package.paths import open_artifact\n"
        "os.closerange(0, 3)\n"
        f"os._exit(open_artifact(Path(sys.argv[1]), {NAME!r}).fd)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(root)], cwd=ROOT, check=False)
    assert done.returncode > 2


def test_names_that_no_locale_can_spell(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "schicht-é-日.gguf").write_bytes(b"x")
    monkeypatch.setattr(os, "fsencode", lambda _: pytest.fail("depends on the locale"))
    monkeypatch.setattr(opened_file, "path_bytes", lambda path: str(path).encode())
    assert content(open_artifact(root, "schicht-é-日.gguf")) == b"x"


def test_a_path_of_many_folders(root: Path) -> None:
    path = "/".join(["d"] * 400 + ["f"])
    (root / path).parent.mkdir(parents=True)
    (root / path).write_bytes(b"deep")
    before = descriptors()
    assert content(open_artifact(root, path)) == b"deep"
    assert descriptors() == before


def test_a_file_of_the_caller(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root / NAME)
    with open_file(tmp_path / "link", "mmproj.gguf") as opened:
        assert opened.n_bytes == 7
        assert opened.still_same()
        rename_over(root / NAME)
        assert not opened.still_same()
    for path, kind in ((tmp_path / "none", "missing_artifact"), (root, "artifact_not_file")):
        with pytest.raises(ArtifactError) as caught:
            open_file(path, "mmproj.gguf")
        assert (caught.value.kind, caught.value.issue.artifact) == (kind, "mmproj.gguf")
