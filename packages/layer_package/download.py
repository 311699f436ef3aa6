"""Owns bringing files of a hub package into the cache: the manifest first, then what is missing.

It must not know who serves them: a `Fetch` puts one file where it is told. Nothing is trusted but
what the manifest says: a file is checked before the cache has it; one that fails its length or
digest is moved to the quarantine, fetched once more, and only then reported.
"""

import errno
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packages.layer_package.digests import IsCancelled, Progress, digest_of
from packages.layer_package.errors import ArtifactError, CacheError, Cancelled, ManifestError
from packages.layer_package.hub_cache import HubRepository, is_commit
from packages.layer_package.hub_install import (
    install,
    link,
    quarantine,
    quarantine_file,
    write_ref,
)
from packages.layer_package.manifest import read_manifest
from packages.layer_package.meter import Meter
from packages.layer_package.model import MANIFEST_NAME, MAX_MANIFEST_BYTES, Artifact, Manifest
from packages.layer_package.paths import OpenedFile, open_artifact
from packages.layer_package.verification import verify_digest, verify_size

_ARRIVING = "arriving"
_WRONG_CONTENT = ("artifact_size_mismatch", "artifact_sha256_mismatch")


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One file to fetch: `path` of `repo_id` (namespace/repo) at `revision`, to be put at `target`.

    `target` does not exist; its folder does and may be used for temporaries. `n_bytes` is its
    length where that is known, `max_bytes` what it may have at most. `progress(bytes done, bytes in
    all)` and `cancelled()` should be asked as the bytes come.
    """

    repo_id: str
    revision: str
    path: str
    target: Path
    n_bytes: int | None
    max_bytes: int
    progress: Progress | None = None
    cancelled: IsCancelled | None = None


# Answers the commit (40 hex digits) that the file was taken from. Raises PackageError or OSError.
Fetch = Callable[[FetchRequest], str]


class Downloader:
    """Fetches into a repository whose one writer the caller is; `incoming` is its private folder.

    OSErrors of the disk go to the caller, who is inside `hub_install.writing`.
    """

    def __init__(
        self,
        repository: HubRepository,
        fetch: Fetch,
        incoming: Path,
        *,
        progress: Progress | None = None,
        cancelled: IsCancelled | None = None,
    ) -> None:
        """`progress` counts the bytes of fetched fragments; the manifest does not count."""
        self._repository, self._fetch, self._incoming = repository, fetch, incoming
        self._progress, self._cancelled = progress, cancelled

    def manifest(self, revision: str, *, expected_sha256: str | None = None) -> str:
        """Fetch and install the manifest of a revision; the commit it is of.

        One that is no valid manifest is not installed: ManifestError of its kind,
        `manifest_too_large`, `manifest_sha256_mismatch`; CacheError `download_failed`.
        """
        request = self._request(revision, MANIFEST_NAME, None, MAX_MANIFEST_BYTES)
        commit = self._call(request)
        with self._opened(MANIFEST_NAME) as opened:
            if opened.n_bytes > MAX_MANIFEST_BYTES:
                raise ManifestError(
                    "manifest_too_large",
                    f"it has {opened.n_bytes} bytes, the limit is {MAX_MANIFEST_BYTES}",
                )
            found = digest_of(opened, artifact=MANIFEST_NAME)
            read_manifest(request.target.read_bytes())
        check_manifest_digest(found, expected_sha256)
        install(self._repository, commit, MANIFEST_NAME, request.target, found)
        # After the manifest: a ref never names a snapshot that has none.
        if not is_commit(revision):
            write_ref(self._repository, revision, commit)
        return commit

    def files(
        self,
        commit: str,
        manifest: Manifest,
        artifacts: Sequence[Artifact],
        *,
        hash_present: bool = False,
    ) -> None:
        """Make the snapshot have these files, sound; fetch those that are missing.

        A file that is there is kept when its length is right, with `hash_present` when its digest
        is too. ArtifactError `artifact_size_mismatch`, `artifact_sha256_mismatch` when the second
        try fails, CacheError `insufficient_space` before the first when they cannot fit,
        `download_failed`; Cancelled.
        """
        wanted = []
        for artifact in artifacts:
            failed = self._is_bad(commit, manifest, artifact, hash_present)
            if failed:
                quarantine(self._repository, commit, artifact.path)
            if failed is not False and not self._adopt(commit, manifest, artifact):
                wanted.append((artifact, 1 if failed else 2))
        n_bytes = sum(artifact.artifact_bytes for artifact, _ in wanted)
        self._check_room(n_bytes)
        meter = Meter(n_bytes, self._progress, self._cancelled, "downloading a package")
        for artifact, tries in wanted:
            self._fetch_checked(commit, manifest, artifact, tries, meter)
        meter.finish()

    def _is_bad(
        self, commit: str, manifest: Manifest, artifact: Artifact, hash_present: bool
    ) -> bool | None:
        """Whether the file that is there is wrong; None when there is none."""
        root, folder = self._repository.snapshot(commit), self._repository.folder
        try:
            with open_artifact(root, artifact.path, repository=folder) as opened:
                self._check(opened, manifest, artifact, hashes=hash_present)
        except ArtifactError as error:
            if error.kind == "missing_artifact":
                return None
            if error.kind not in _WRONG_CONTENT:
                raise
            return True
        return False

    def _adopt(self, commit: str, manifest: Manifest, artifact: Artifact) -> bool:
        """Link to a sound blob of that digest if the repository has one, from another commit."""
        blobs = self._repository.folder / "blobs"
        try:
            with open_artifact(blobs, artifact.sha256) as opened:
                self._check(opened, manifest, artifact)
        except ArtifactError as error:
            if error.kind in _WRONG_CONTENT:
                path = blobs / artifact.sha256
                quarantine_file(self._repository, commit, artifact.path, path)
            return False
        link(self._repository, commit, artifact.path, artifact.sha256)
        return True

    def _fetch_checked(
        self, commit: str, manifest: Manifest, artifact: Artifact, tries: int, meter: Meter
    ) -> None:
        request = self._request(
            commit, artifact.path, artifact.artifact_bytes, artifact.artifact_bytes, meter
        )
        for left in range(tries - 1, -1, -1):
            came_from = self._call(request)
            if came_from != commit:
                raise _failed(request, f"commit {commit} was asked for, {came_from} came")
            try:
                with self._opened(artifact.path) as opened:
                    self._check(opened, manifest, artifact)
                break
            except ArtifactError as error:
                if error.kind not in _WRONG_CONTENT:
                    raise
                quarantine_file(self._repository, commit, artifact.path, request.target)
                if not left:
                    raise
        install(self._repository, commit, artifact.path, request.target, artifact.sha256)
        if request.progress is not None:
            request.progress(artifact.artifact_bytes, artifact.artifact_bytes)

    def _check(
        self, opened: OpenedFile, manifest: Manifest, artifact: Artifact, *, hashes: bool = True
    ) -> None:
        verify_size(opened, artifact)
        if hashes:
            verify_digest(opened, manifest, artifact, cancelled=self._cancelled)

    def _request(
        self, revision: str, path: str, n_bytes: int | None, max_bytes: int,
        meter: Meter | None = None,
    ) -> FetchRequest:  # fmt: skip
        return FetchRequest(
            self._repository.repo_id, revision, path, self._incoming / _ARRIVING, n_bytes,
            max_bytes, None if meter is None else meter.part(), self._cancelled,
        )  # fmt: skip

    def _call(self, request: FetchRequest) -> str:
        if self._cancelled is not None and self._cancelled():
            raise Cancelled("downloading a package", artifact=request.path)
        try:
            commit = self._fetch(request)
        except OSError as error:
            # A full disk is told by `writing`; an error without a number is not the disk's.
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            why = error.strerror or type(error).__name__
            raise _failed(request, why) from error
        if not is_commit(commit):
            raise _failed(request, f"it came from {commit!a:.80}, which is no commit")
        return commit

    def _opened(self, path: str) -> OpenedFile:
        """What arrived; `download_failed` when nothing did, or no regular file."""
        try:
            return open_artifact(self._incoming, _ARRIVING)
        except ArtifactError as error:
            raise CacheError(
                "download_failed", f"no regular file arrived: {error.kind}", artifact=path
            ) from error

    def _check_room(self, n_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self._repository.folder).free
        if n_bytes > free_bytes:
            raise CacheError(
                "insufficient_space",
                f"{n_bytes} bytes are to be downloaded, the cache's disk has {free_bytes} free",
                hint="free space, or name another cache with HF_HUB_CACHE",
            )


def check_manifest_digest(found: str, expected: str | None) -> None:
    """ManifestError `manifest_sha256_mismatch` unless it is the expected one; None expects none."""
    if expected is not None and found != expected.lower():
        raise ManifestError(
            "manifest_sha256_mismatch",
            f"the manifest has SHA-256 {found}, {expected.lower()!a:.80} is expected",
            artifact=MANIFEST_NAME,
        )


def _failed(request: FetchRequest, why: str) -> CacheError:
    return CacheError(
        "download_failed",
        f"from {request.repo_id} at {request.revision}: {why}",
        artifact=request.path,
    )
