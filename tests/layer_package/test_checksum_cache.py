"""Owns that the checksum cache knows the very file that was verified, and no other."""

import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.cache_roots import checksum_cache_folder
from packages.layer_package.checksum_cache import MAX_RECORD_BYTES, ChecksumCache, record_name
from packages.layer_package.errors import ArtifactError, Report
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.paths import Identity, open_artifact
from packages.layer_package.verification import verify_digest
from tests.layer_package.hub_cases import manifest_of
from tests.layer_package.package_cases import write_tiny_package

Known = tuple[ChecksumCache, Path, Manifest, Artifact]
# File systems stamp with the clock of the last tick.
TICK_SECONDS = 0.02


@pytest.fixture
def known(tmp_path: Path) -> Known:
    """A cache with the record of one settled layer file."""
    package = write_tiny_package(tmp_path / "p")
    manifest = manifest_of(package)
    entry = manifest.layers[0]
    long_ago = time.time_ns() - 60 * 10**9
    os.utime(package / entry.path, ns=(long_ago, long_ago))
    cache = ChecksumCache(tmp_path / "cache")
    assert verified(cache, package, manifest, entry), "nothing is known yet"
    return cache, package, manifest, entry


def verified(cache: ChecksumCache, package: Path, manifest: Manifest, entry: Artifact) -> bool:
    """Verify through the cache; whether the file had to be hashed."""
    with open_artifact(package, entry.path) as opened:
        return verify_digest(opened, manifest, entry, cache=cache)


def record_of(known: Known) -> Path:
    cache, _, manifest, entry = known
    return cache.folder / record_name(manifest, entry)


def test_a_second_verification_does_not_hash(known: Known) -> None:
    assert not verified(*known)


def test_a_record_holds_what_the_contract_lists_and_no_path(known: Known, tmp_path: Path) -> None:
    text = record_of(known).read_text()
    assert sorted(json.loads(text)) == [
        "artifact_bytes", "artifact_sha256", "changed_unix_nanos", "device", "file_len", "inode",
        "manifest_sha256", "modified_unix_nanos", "schema_version", "verified_unix_nanos",
    ]  # fmt: skip
    assert str(tmp_path) not in text
    assert stat.S_IMODE(os.stat(known[0].folder).st_mode) == 0o700
    assert [path.name for path in known[0].folder.iterdir()] == [record_of(known).name]


def test_m58_a_flipped_byte_with_its_old_time_is_found(known: Known) -> None:
    cache, package, manifest, entry = known
    path = package / entry.path
    before = os.stat(path)
    time.sleep(TICK_SECONDS)
    data = path.read_bytes()
    with open(path, "r+b") as file:
        file.write(bytes([data[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns
    assert os.stat(path).st_size == before.st_size
    with pytest.raises(ArtifactError) as caught:
        verified(cache, package, manifest, entry)
    assert caught.value.kind == "artifact_sha256_mismatch"
    with pytest.raises(ArtifactError):
        verified(cache, package, manifest, entry)


def test_a_failure_is_never_recorded(tmp_path: Path) -> None:
    package = write_tiny_package(tmp_path / "p")
    manifest = manifest_of(package)
    entry = manifest.layers[0]
    path = package / entry.path
    path.write_bytes(bytes(path.stat().st_size))
    cache = ChecksumCache(tmp_path / "cache")
    with pytest.raises(ArtifactError):
        verified(cache, package, manifest, entry)
    assert not cache.folder.exists()


def test_a_file_touched_within_two_seconds_is_hashed_again(known: Known) -> None:
    cache, package, manifest, entry = known
    now = time.time_ns()
    os.utime(package / entry.path, ns=(now, now))
    assert verified(*known)
    assert verified(*known), "recorded, but not settled"
    path = package / entry.path
    with open_artifact(package, entry.path) as opened:
        modified = os.stat(path).st_mtime_ns
        for age, expected in ((2 * 10**9, True), (2 * 10**9 - 1, False), (-1, False)):
            cache.record(manifest, entry, opened, verified_unix_nanos=modified + age)
            assert cache.hit(manifest, entry, opened) is expected, age


def test_another_file_of_the_same_bytes_is_hashed(known: Known) -> None:
    _, package, _, entry = known
    path = package / entry.path
    before = os.stat(path)
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(copy, path)
    assert verified(*known)


@pytest.mark.parametrize("field", Identity._fields)
def test_a_file_that_differs_in_any_part_of_its_identity_is_unknown(
    known: Known, field: str
) -> None:
    cache, package, manifest, entry = known
    with open_artifact(package, entry.path) as opened:
        assert cache.hit(manifest, entry, opened)
        opened.identity = opened.identity._replace(**{field: getattr(opened.identity, field) - 1})
        assert not cache.hit(manifest, entry, opened)


def _member(name: str, value: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda record: {**record, name: value}


BAD_RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "other schema": _member("schema_version", 2),
    "true is not one": _member("schema_version", True),
    "1.0 is not one": _member("schema_version", 1.0),
    "another manifest": _member("manifest_sha256", "0" * 64),
    "another digest": _member("artifact_sha256", "0" * 64),
    "another length": _member("file_len", 1),
    "artifact bytes": _member("artifact_bytes", 1),
    "another time": _member("modified_unix_nanos", 1),
    "another change": _member("changed_unix_nanos", 1),
    "another device": _member("device", -1),
    "another inode": _member("inode", -1),
    "verified text": _member("verified_unix_nanos", "9" * 30),
    "verified never": _member("verified_unix_nanos", None),
    "verified before": _member("verified_unix_nanos", 0),
    "a foreign member": _member("path", "layers/x.gguf"),
    "a missing member": lambda r: {k: v for k, v in r.items() if k != "inode"},
    "a list": lambda r: [r],
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_a_record_that_says_anything_else_is_a_miss(known: Known, case: str) -> None:
    path = record_of(known)
    path.write_text(json.dumps(BAD_RECORDS[case](json.loads(path.read_text()))))
    assert verified(*known)
    assert not verified(*known), "and is replaced by a good one"


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"{", b"[" * 60_000, b"9" * 60_000, b"null"],
    ids=["empty", "bytes", "torn", "deep", "long number", "null"],
)  # fmt: skip
def test_an_unreadable_record_is_a_miss(known: Known, data: bytes) -> None:
    record_of(known).write_bytes(data)
    assert verified(*known)
    assert not verified(*known)


def test_an_oversized_record_is_a_miss(known: Known) -> None:
    path = record_of(known)
    path.write_bytes(path.read_bytes().ljust(MAX_RECORD_BYTES, b" "))
    assert not verified(*known)
    path.write_bytes(path.read_bytes() + b" ")
    assert verified(*known)


def test_a_record_that_is_no_plain_file_is_a_miss_and_waits_for_nobody(known: Known) -> None:
    path = record_of(known)
    content = path.rename(path.with_name("elsewhere"))
    path.symlink_to(content)
    assert verified(*known), "a link"
    path.unlink()
    os.mkfifo(path)
    assert verified(*known), "a FIFO"


def test_a_folder_that_others_may_write_to_vouches_for_nothing(known: Known) -> None:
    os.chmod(known[0].folder, 0o777)
    report = Report()
    with open_artifact(known[1], known[3].path) as opened:
        assert not known[0].hit(known[2], known[3], opened)
        assert not known[0].record(known[2], known[3], opened, report=report)
    assert report.kinds() == ["checksum_cache_not_written"]
    assert report.valid


def test_a_folder_that_others_may_read_is_closed(known: Known) -> None:
    os.chmod(known[0].folder, 0o755)
    assert not verified(*known)
    assert stat.S_IMODE(os.stat(known[0].folder).st_mode) == 0o700


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    package = write_tiny_package(tmp_path / "p")
    manifest = manifest_of(package)
    (tmp_path / "file").write_bytes(b"")
    cache, report = ChecksumCache(tmp_path / "file" / "cache"), Report(fail_fast=True)
    with open_artifact(package, manifest.output.path) as opened:
        assert verify_digest(opened, manifest, manifest.output, cache=cache, report=report)
    assert report.kinds() == ["checksum_cache_not_written"]
    assert str(tmp_path) not in next(iter(report)).message


def test_names_differ_in_every_part(known: Known, tmp_path: Path) -> None:
    _, _, manifest, entry = known
    names = {record_name(manifest, artifact) for artifact in manifest.artifacts}
    assert len(names) == len(manifest.artifacts)
    other = manifest_of(write_tiny_package(tmp_path / "q", n_layers=2))
    changes: list[dict[str, Any]] = [
        {"role": "output"}, {"layer_index": None}, {"layer_index": 1}, {"path": "x.gguf"},
        {"sha256": "0" * 64}, {"artifact_bytes": entry.artifact_bytes + 1},
    ]  # fmt: skip
    names = {record_name(manifest, replace(entry, **change)) for change in changes}
    names |= {record_name(manifest, entry), record_name(other, entry)}
    assert len(names) == len(changes) + 2


def test_where_the_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    monkeypatch.delenv("SKIPPY_PACKAGE_VERIFY_CACHE_DIR", raising=False)
    assert checksum_cache_folder() == tmp_path / "x" / "skippy-package-integrity"
    monkeypatch.setenv("SKIPPY_PACKAGE_VERIFY_CACHE_DIR", str(tmp_path / "v"))
    assert checksum_cache_folder() == tmp_path / "v"
    assert checksum_cache_folder(tmp_path / "a") == tmp_path / "a"
