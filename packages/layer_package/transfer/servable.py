"""Owns finding and verifying the file that a granted request asks for, in the managed cache.

It must not know streams. What is opened here is what is sent: size and digest are of the descriptor
that the bytes are then read from. The manifest and the needed files of a grant are kept for as long
as the topology is active; they are those of its digest, so that they cannot grow old.
"""

import hashlib
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.digests import digest_of
from packages.layer_package.errors import PackageError, TransferError
from packages.layer_package.fragments import Fragment, read_fragment
from packages.layer_package.manifest import read_manifest
from packages.layer_package.model import MANIFEST_NAME, Artifact, Manifest
from packages.layer_package.opened_file import OpenedFile, open_below
from packages.layer_package.paths import open_artifact
from packages.layer_package.transfer.authorise import Grant, needed_artifacts
from packages.layer_package.transfer.messages import ArtifactRequest
from packages.layer_package.transfer.place import Place, eligible_ref, place_of
from packages.layer_package.verification import verify_digest, verify_size


@dataclass(frozen=True, slots=True)
class Servable:
    """An open, verified file; the taker closes it."""

    opened: OpenedFile
    n_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Known:
    manifest: Manifest
    needed: dict[str, Artifact]


class ServableFiles:
    """The files of the hub cache at `cache_root` that peers may get."""

    def __init__(
        self, cache_root: Path, manifest_bytes: int, checksum_cache: ChecksumCache | None
    ) -> None:
        """`manifest_bytes` is the limit of a manifest."""
        self._cache_root = cache_root
        self._manifest_bytes = manifest_bytes
        self._checksum_cache = checksum_cache
        self._lock = threading.Lock()
        self._known: weakref.WeakKeyDictionary[Grant, _Known] = weakref.WeakKeyDictionary()

    def find(
        self, request: ArtifactRequest, grant: Grant, cancelled: Callable[[], bool]
    ) -> Servable:
        """Checks 6 to 10. PackageError with the reason, for the local log only.

        Hashing a large file may take longer than the peer waits; it goes on all the same, so that
        the checksum cache has the answer when the peer asks again. Only `cancelled` ends it.
        """
        place = place_of(self._cache_root, eligible_ref(request.package_ref))
        if request.relative_path == MANIFEST_NAME:
            return self._manifest_file(place, request)
        known = self._known_of(place, grant)
        artifact = known.needed.get(request.relative_path)
        if artifact is None:
            raise TransferError(
                "transfer_not_authorised",
                f"the file is not needed by layers [{grant.stage.layer_start},"
                f" {grant.stage.layer_end})",
                artifact=request.relative_path,
            )
        _check_expected(request, artifact.artifact_bytes, artifact.sha256)
        opened = open_artifact(place.root, artifact.path, repository=place.repository)
        try:
            verify_size(opened, artifact)
            verify_digest(
                opened, known.manifest, artifact, cache=self._checksum_cache, cancelled=cancelled
            )
            _check_offset(request, opened.n_bytes)
        except PackageError:
            opened.close()
            raise
        return Servable(opened, opened.n_bytes, artifact.sha256)

    def _manifest_file(self, place: Place, request: ArtifactRequest) -> Servable:
        opened = open_manifest(place)
        try:
            self._check_manifest_size(opened)
            found = digest_of(opened, artifact=MANIFEST_NAME)
            if found != request.manifest_sha256:
                raise _other_manifest(found, request.manifest_sha256)
            _check_expected(request, opened.n_bytes, found)
            _check_offset(request, opened.n_bytes)
        except PackageError:
            opened.close()
            raise
        return Servable(opened, opened.n_bytes, found)

    def _known_of(self, place: Place, grant: Grant) -> _Known:
        with self._lock:
            known = self._known.get(grant)
        if known is None:
            known = self._learn(place, grant)
            with self._lock:
                self._known[grant] = known
        return known

    def _learn(self, place: Place, grant: Grant) -> _Known:
        with open_manifest(place) as opened:
            self._check_manifest_size(opened)
            data = read_whole(opened)
        found, wanted = hashlib.sha256(data).hexdigest(), grant.topology.manifest_sha256.lower()
        if found != wanted:
            raise _other_manifest(found, wanted)
        manifest = read_manifest(data)
        needed, _ = needed_artifacts(
            manifest, grant.stage.layer_start, grant.stage.layer_end,
            is_last=grant.is_last, fragment_of=header_reader(place),
        )  # fmt: skip
        return _Known(manifest, {artifact.path: artifact for artifact in needed})

    def _check_manifest_size(self, opened: OpenedFile) -> None:
        if opened.n_bytes > self._manifest_bytes:
            raise TransferError(
                "manifest_too_large",
                f"{opened.n_bytes} bytes, the limit is {self._manifest_bytes}",
                artifact=MANIFEST_NAME,
            )


def open_manifest(place: Place) -> OpenedFile:
    """The manifest of a snapshot. ArtifactError as `open_artifact`."""
    return open_below(place.root, MANIFEST_NAME, place.repository)


def read_whole(opened: OpenedFile) -> bytes:
    """The bytes of a manifest, whose size was checked. TransferError `artifact_unreadable`."""
    try:
        data = os.pread(opened.fd, opened.n_bytes, 0)
    except OSError as e:
        raise TransferError(
            "artifact_unreadable", f"cannot be read: {e.strerror}", artifact=MANIFEST_NAME
        ) from e
    return data


def header_reader(place: Place) -> Callable[[Artifact], Fragment | None]:
    """Reads headers of the files that are there; None for what is missing or unsound."""

    def fragment_of(artifact: Artifact) -> Fragment | None:
        try:
            with open_artifact(place.root, artifact.path, repository=place.repository) as opened:
                return read_fragment(opened, artifact.path)
        except PackageError:
            return None

    return fragment_of


def _check_expected(request: ArtifactRequest, n_bytes: int, sha256: str) -> None:
    if request.expected_size not in (None, n_bytes):
        raise TransferError(
            "artifact_size_mismatch",
            f"the peer expects {request.expected_size} bytes, the manifest says {n_bytes}",
            artifact=request.relative_path,
        )
    if request.expected_sha256 not in (None, sha256):
        raise TransferError(
            "artifact_sha256_mismatch",
            f"the peer expects {request.expected_sha256}, the manifest says {sha256}",
            artifact=request.relative_path,
        )


def _check_offset(request: ArtifactRequest, n_bytes: int) -> None:
    if request.offset > n_bytes:
        raise TransferError(
            "invalid_transfer_offset", f"offset {request.offset} of {n_bytes} bytes",
            artifact=request.relative_path,
        )  # fmt: skip


def _other_manifest(found: str, wanted: str) -> TransferError:
    return TransferError(
        "manifest_sha256_mismatch", f"the manifest has {found}, {wanted} is asked for",
        artifact=MANIFEST_NAME,
    )  # fmt: skip
