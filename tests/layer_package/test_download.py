"""Owns that a download leaves whole, checked files or nothing: bad content, full disks, cancelling.

Long because every way in which one process can fail is here, with the same check of what is left.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package import download
from packages.layer_package.checks import validate
from packages.layer_package.download import FetchRequest
from packages.layer_package.errors import ArtifactError, CacheError, Cancelled, PackageError
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.resolve import repair_package, resolve_package
from packages.layer_package.selection import StageRequest
from tests.layer_package.hub_cases import (
    COMMIT,
    FOLDER,
    OTHER_COMMIT,
    REF,
    FakeHub,
    cached,
    leftovers,
)
from tests.layer_package.package_cases import write_tiny_package

METADATA, LAYER = "shared/metadata.gguf", "layers/layer-00000.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return FakeHub(write_tiny_package(tmp_path / "p"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def resolve(cache: Path, fetch: Callable[[FetchRequest], str], **options: Any) -> PackageDir:
    return resolve_package(REF, scope="package", cache=cache, fetch=fetch, **options)


def check_whole(cache: Path) -> None:
    """Every file in place and sound, nothing else in the cache."""
    package = resolve_package(REF, scope="package", cache=cache)
    assert validate(package, "package").valid
    assert leftovers(cache) == []


def refusals(cache: Path, hub: FakeHub) -> list[str]:
    """Kinds of the refusals of fetching the metadata: none or one."""
    try:
        resolve_package(REF, scope="metadata", cache=cache, fetch=hub)
    except PackageError as error:
        return [error.kind]
    return []


def flipped(hub: FakeHub, path: str) -> bytes:
    data = (hub.folder / path).read_bytes()
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("fault", ["flipped", "short", "long", "empty"])
def test_bad_content_is_quarantined_and_fetched_once_more(
    hub: FakeHub, cache: Path, fault: str
) -> None:
    data = (hub.folder / LAYER).read_bytes()
    bad = {"flipped": flipped(hub, LAYER), "short": data[:-1], "long": data + b"x", "empty": b""}
    hub.faults[LAYER] = [bad[fault]]
    resolve(cache, hub)
    assert hub.paths.count(LAYER) == 2
    (kept,) = (cache / ".quarantine" / FOLDER).iterdir()
    assert kept.read_bytes() == bad[fault]
    check_whole(cache)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("flipped", "artifact_sha256_mismatch"), ("short", "artifact_size_mismatch")],
)
def test_bad_content_twice_is_reported_and_not_installed(
    hub: FakeHub, cache: Path, fault: str, kind: str
) -> None:
    bad = flipped(hub, LAYER) if fault == "flipped" else b"x"
    hub.faults[LAYER] = [bad, bad]
    with pytest.raises(ArtifactError) as caught:
        resolve(cache, hub)
    assert caught.value.kind == kind
    assert caught.value.issue.artifact == LAYER
    assert hub.paths.count(LAYER) == 2
    assert len(list((cache / ".quarantine" / FOLDER).iterdir())) == 1
    assert not os.path.lexists(cache / FOLDER / "snapshots" / COMMIT / LAYER)
    assert leftovers(cache) == []
    resolve(cache, hub)
    check_whole(cache)


def fifo(request: FetchRequest) -> None:
    os.mkfifo(request.target)


def folder(request: FetchRequest) -> None:
    request.target.mkdir()


def link(request: FetchRequest) -> None:
    real = request.target.with_name("real")
    real.write_bytes(b"x")
    request.target.symlink_to(real)


def unreachable(_: FetchRequest) -> None:
    raise ConnectionError("the address of the hub")


def timed_out(_: FetchRequest) -> None:
    raise TimeoutError(errno.ETIMEDOUT, "timed out")


@pytest.mark.parametrize(
    "fault", [lambda _: None, fifo, folder, link, unreachable, timed_out],
    ids=["nothing", "FIFO", "folder", "link", "unreachable", "timed out"],
)  # fmt: skip
@pytest.mark.parametrize("path", [MANIFEST_NAME, LAYER])
def test_a_fetch_that_brings_no_file_failed(
    hub: FakeHub, cache: Path, path: str, fault: Callable[[FetchRequest], None]
) -> None:
    hub.faults[path] = [fault]
    with pytest.raises(CacheError) as caught:
        resolve(cache, hub)
    assert caught.value.kind == "download_failed"
    assert caught.value.issue.artifact == path
    assert "address" not in str(caught.value)
    assert str(cache) not in str(caught.value)
    assert leftovers(cache) == []


@pytest.mark.parametrize("commit", ["main", "", "../../x", COMMIT.upper(), OTHER_COMMIT + "\n"])
def test_a_manifest_of_no_commit_is_not_installed(hub: FakeHub, cache: Path, commit: str) -> None:
    hub.commit = commit
    with pytest.raises(CacheError) as caught:
        resolve(cache, hub)
    assert caught.value.kind == "download_failed"
    assert leftovers(cache) == []


def test_a_file_of_another_commit_is_not_installed(hub: FakeHub, cache: Path) -> None:
    resolve_package(REF, scope="manifest", cache=cache, fetch=hub)
    hub.commit = OTHER_COMMIT
    with pytest.raises(CacheError) as caught:
        resolve(cache, hub)
    assert caught.value.kind == "download_failed"
    assert hub.paths == [MANIFEST_NAME, METADATA]


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"<html>", "invalid_manifest_json"), (bytes((16 << 20) + 1), "manifest_too_large"),
     (b"", "invalid_manifest_json")],
    ids=["a page", "too large", "empty"],
)  # fmt: skip
def test_a_manifest_that_is_none_is_not_installed(
    hub: FakeHub, cache: Path, data: bytes, kind: str
) -> None:
    hub.faults[MANIFEST_NAME] = [data]
    with pytest.raises(PackageError) as caught:
        resolve(cache, hub)
    assert caught.value.kind == kind
    assert not (cache / FOLDER / "snapshots").exists()
    assert leftovers(cache) == []
    resolve(cache, hub)
    check_whole(cache)


def full_disk(request: FetchRequest) -> None:
    request.target.write_bytes(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("path", [MANIFEST_NAME, LAYER])
def test_a_disk_that_fills_up_leaves_nothing_of_the_file(
    hub: FakeHub, cache: Path, path: str
) -> None:
    hub.faults[path] = [full_disk]
    with pytest.raises(CacheError) as caught:
        resolve(cache, hub)
    assert caught.value.kind == "insufficient_space"
    assert str(cache) not in str(caught.value)
    assert leftovers(cache) == []
    resolve(cache, hub)
    assert hub.paths.count(path) == 2
    check_whole(cache)


def test_a_package_larger_than_the_free_space_is_not_begun(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_package(REF, scope="metadata", cache=cache, fetch=hub)
    hub.requests.clear()
    monkeypatch.setattr(
        download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})
    )
    with pytest.raises(CacheError) as caught:
        resolve(cache, hub)
    assert caught.value.kind == "insufficient_space"
    assert "1000 free" in str(caught.value)
    assert hub.paths == []


@pytest.mark.parametrize("call", ["replace", "symlink", "mkdir", "fsync"])
def test_a_write_that_fails_at_any_point_leaves_only_whole_files(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(os, call)
    for nth in range(1, 100):
        left = [nth]

        def failing(*args: Any, left: list[int] = left, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        target = cache / str(nth)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            kinds = refusals(target, hub)
        assert kinds in ([], ["insufficient_space"])
        assert leftovers(target) == []
        if left[0] > 0:
            break
        resolve_package(REF, scope="metadata", cache=target, fetch=hub)
        package = resolve_package(REF, scope="metadata", cache=target)
        assert validate(package, "metadata").valid
    assert nth > 2


def test_a_cache_that_may_not_be_written_is_told(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheError) as caught:
        resolve(tmp_path / "file" / "cache", hub)
    assert caught.value.kind == "cache_not_writable"
    assert str(tmp_path) not in str(caught.value)


def test_a_linked_folder_in_the_cache_is_not_written_through(
    hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    resolve_package(REF, scope="manifest", cache=cache, fetch=hub)
    outside = tmp_path / "outside"
    outside.mkdir()
    (cache / FOLDER / "snapshots" / COMMIT / "shared").symlink_to(outside)
    with pytest.raises(PackageError) as caught:
        resolve(cache, hub)
    assert caught.value.kind == "artifact_escapes_root"
    assert list(outside.iterdir()) == []


def test_cancelling_keeps_the_files_that_are_whole(hub: FakeHub, cache: Path) -> None:
    told: list[tuple[int, int]] = []
    with pytest.raises(Cancelled):
        resolve(cache, hub, progress=lambda *d: told.append(d), cancelled=lambda: len(told) > 3)
    assert leftovers(cache) == []
    before = hub.paths
    hub.requests.clear()
    resolve(cache, hub)
    assert 0 < len(hub.paths) < len(before) + len(hub.paths)
    assert MANIFEST_NAME not in hub.paths
    assert METADATA not in hub.paths
    check_whole(cache)


def test_progress_counts_the_fetched_bytes_once(hub: FakeHub, cache: Path) -> None:
    hub.faults[LAYER] = [flipped(hub, LAYER)]
    told: list[tuple[int, int]] = []
    package = resolve(cache, hub, progress=lambda *done: told.append(done))
    n_bytes = sum(artifact.artifact_bytes for artifact in package.manifest.artifacts)
    assert told == sorted(told)
    assert told[-1] == (n_bytes, n_bytes)
    assert {total for _, total in told} == {n_bytes}


def test_repair_replaces_what_is_bad_and_keeps_what_is_good(hub: FakeHub, cache: Path) -> None:
    snapshot = cached(cache, hub.folder)
    package = resolve_package(REF, scope="stage", layers=(0, 1), cache=cache)
    blob = (snapshot / LAYER).resolve()
    data = blob.read_bytes()
    blob.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    repair_package(package, [LAYER, METADATA], fetch=hub)
    assert hub.paths == [LAYER]
    assert (snapshot / LAYER).read_bytes() == data
    (bad,) = (cache / ".quarantine" / FOLDER).iterdir()
    assert bad.read_bytes()[1:] == data[1:]
    assert leftovers(cache) == []
    repair_package(package, [LAYER], fetch=hub)
    assert hub.paths == [LAYER], "it is good now"


def test_repair_fetches_once_and_then_reports(hub: FakeHub, cache: Path) -> None:
    snapshot = cached(cache, hub.folder)
    package = resolve_package(REF, scope="metadata", cache=cache)
    blob = (snapshot / METADATA).resolve()
    bad = bytes(blob.stat().st_size)
    blob.write_bytes(bad)
    hub.faults[METADATA] = [bad, bad]
    with pytest.raises(ArtifactError) as caught:
        repair_package(package, [METADATA], fetch=hub)
    assert caught.value.kind == "artifact_sha256_mismatch"
    assert hub.paths == [METADATA]
    assert not os.path.lexists(snapshot / METADATA)
    with pytest.raises(CacheError) as offline:
        repair_package(package, [METADATA], fetch=hub, offline=True)
    assert offline.value.kind == "not_cached"


def test_a_loaded_stage_passes_the_checks(hub: FakeHub, cache: Path) -> None:
    package = resolve_package(REF, scope="stage", layers=(1, 3), cache=cache, fetch=hub)
    assert validate(package, "stage", stage=StageRequest(1, 3)).valid
