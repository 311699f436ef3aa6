"""Owns a file's digest: right at every length, in constant memory, stopped when asked."""

import hashlib
import os
import tracemalloc
from pathlib import Path

import pytest

from packages.layer_package import digests
from packages.layer_package.digests import digest_of
from packages.layer_package.errors import ArtifactError, Cancelled, PackageError
from packages.layer_package.manifest import read_manifest
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.paths import OpenedFile, open_artifact
from packages.layer_package.references import PackageRef
from packages.layer_package.verification import must_verify, verify_digest, verify_size
from tests.layer_package.hub_cases import REF
from tests.layer_package.package_cases import write_tiny_package

PIECE = digests.PIECE_BYTES


def opened(tmp_path: Path, data: bytes) -> OpenedFile:
    (tmp_path / "f.gguf").write_bytes(data)
    return open_artifact(tmp_path, "f.gguf")


@pytest.mark.parametrize("n_bytes", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 3])
def test_the_digest_of_every_length_is_that_of_its_bytes(tmp_path: Path, n_bytes: int) -> None:
    data = os.urandom(n_bytes)
    told: list[tuple[int, int]] = []
    with opened(tmp_path, data) as file:
        found = digest_of(file, progress=lambda *done: told.append(done))
    assert found == hashlib.sha256(data).hexdigest()
    assert told == [(min(end, n_bytes), n_bytes) for end in range(PIECE, n_bytes + PIECE, PIECE)]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    with opened(tmp_path, bytes(8 * PIECE)) as file:
        tracemalloc.start()
        digest_of(file)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1.1 * PIECE


def test_a_cancelled_digest_reads_no_further(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with opened(tmp_path, bytes(3 * PIECE)) as file, pytest.raises(Cancelled) as caught:
        digest_of(file, progress=lambda *d: told.append(d), cancelled=lambda: len(told) == 1)
    assert caught.value.kind == "cancelled"
    assert told == [(PIECE, 3 * PIECE)]


@pytest.mark.parametrize("n_bytes", [PIECE, 3 * PIECE], ids=["shrinks", "grows"])
def test_a_file_that_changes_its_length_meanwhile_is_refused(tmp_path: Path, n_bytes: int) -> None:
    def change(done: int, in_all: int) -> None:
        assert done <= in_all
        os.truncate(tmp_path / "f.gguf", n_bytes)

    with opened(tmp_path, bytes(PIECE + 9)) as file, pytest.raises(ArtifactError) as caught:
        digest_of(file, artifact="f.gguf", progress=change)
    assert caught.value.kind == "artifact_changed"
    assert caught.value.issue.artifact == "f.gguf"


def test_a_read_that_fails_names_the_file_and_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(digests.os, "preadv", broken)
    with opened(tmp_path, b"abc") as file, pytest.raises(ArtifactError) as caught:
        digest_of(file, artifact="f.gguf")
    assert str(caught.value) == (
        "artifact_unreadable: f.gguf: byte 0 of 3 cannot be read: Input/output error"
    )


def test_one_flipped_byte_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    package = write_tiny_package(tmp_path / "p")
    manifest = read_manifest((package / MANIFEST_NAME).read_bytes())
    entry = manifest.layers[1]
    data = bytearray((package / entry.path).read_bytes())
    data[-1] ^= 1
    (package / entry.path).write_bytes(data)
    with open_artifact(package, entry.path) as file:
        verify_size(file, entry)
        with pytest.raises(ArtifactError) as caught:
            verify_digest(file, manifest, entry)
    assert caught.value.kind == "artifact_sha256_mismatch"
    assert caught.value.issue.pointer == "/layers/1/sha256"
    (package / entry.path).write_bytes(data[:-1])
    with open_artifact(package, entry.path) as file, pytest.raises(ArtifactError) as caught:
        verify_size(file, entry)
    assert caught.value.kind == "artifact_size_mismatch"


@pytest.mark.parametrize(
    ("kind", "verify", "variable", "expected"),
    [
        ("hf", None, None, True),
        ("hf", True, "0", True),
        ("local", None, None, False),
        ("local", True, None, True),
        ("local", None, "", False),
        ("local", None, "0", False),
        ("local", None, "False", False),
        ("local", None, "no", True),
        ("local", False, "1", True),
    ],
)
def test_when_digests_are_verified(
    monkeypatch: pytest.MonkeyPatch, kind: str, verify: bool | None, variable: str | None,
    expected: bool,
) -> None:  # fmt: skip
    monkeypatch.delenv("SKIPPY_VERIFY_PACKAGE_SHA", raising=False)
    if variable is not None:
        monkeypatch.setenv("SKIPPY_VERIFY_PACKAGE_SHA", variable)
    ref = PackageRef.parse(REF) if kind == "hf" else PackageRef("local", path=Path("p"))
    assert must_verify(ref, verify) is expected


def test_verification_of_a_hub_package_cannot_be_switched_off() -> None:
    with pytest.raises(PackageError) as caught:
        must_verify(PackageRef.parse(REF), False)
    assert caught.value.kind == "checksum_required"
