"""Owns finding a hub package in the cache and completing it: which files, in which order.

It must not know how a file is fetched or installed. The manifest comes first and after it only the
files that the scope selects.

Choices. A ref in the cache is followed and not asked again of the hub, as the contract orders it;
only a manifest that is not the one expected is looked for anew where the revision may have moved. A
file of the wrong length counts as missing for a download, and is left to the checks without one.
Without `selection_hints` only the embeddings' own header tells that a stage needs them not, so they
are downloaded with it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packages.layer_package.checks import header_reader
from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.download import Downloader, Fetch, check_manifest_digest
from packages.layer_package.errors import ArtifactError, CacheError, ManifestError
from packages.layer_package.hub_cache import HubRepository, is_commit
from packages.layer_package.hub_install import LOCK_SECONDS, writing
from packages.layer_package.manifest import load_manifest
from packages.layer_package.model import MANIFEST_NAME, Artifact
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.paths import open_artifact
from packages.layer_package.references import PackageRef
from packages.layer_package.selection import StageRequest

Scope = Literal["manifest", "metadata", "stage", "package"]
_LISTED = 32


class NotCached(CacheError):
    """Kind `not_cached`: what may not be downloaded and is not there; `missing` are its paths."""

    def __init__(self, ref: PackageRef, missing: Sequence[str], why: str) -> None:
        """Files of that package, by manifest path, and why they are not fetched."""
        self.missing = tuple(missing)
        rest = len(missing) - _LISTED
        super().__init__(
            "not_cached",
            f"{len(missing)} files of {ref.canonical} are not in the cache, and {why}:"
            f" {', '.join(missing[:_LISTED])}{f' and {rest} more' if rest > 0 else ''}",
        )


def load_package(
    ref: PackageRef,
    root: Path,
    repository: Path | None = None,
    *,
    runtime_abi: str | None = None,
    strict: bool = False,
    expected_sha256: str | None = None,
) -> PackageDir:
    """The package in a folder; ManifestErrors, `manifest_sha256_mismatch` among them."""
    manifest = load_manifest(
        root, runtime_abi=runtime_abi, strict=strict, repository=repository
    )
    check_manifest_digest(manifest.sha256, expected_sha256)
    return PackageDir(root, ref, repository, manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    fetch: Fetch | None
    why_not: str
    runtime_abi: str | None = None
    strict: bool = False
    expected_sha256: str | None = None
    lock_seconds: float = LOCK_SECONDS
    progress: Progress | None = None
    cancelled: IsCancelled | None = None


@dataclass(frozen=True, slots=True)
class HubResolver(_Options):
    """One resolution of a hub reference; see `resolve_package`. Without `fetch` nothing is written,
    and `why_not` says in the error why."""

    ref: PackageRef
    repository: HubRepository
    scope: Scope
    stage: StageRequest | None

    def resolve(self) -> PackageDir:
        """The package, its selected files present."""
        package = self._cached()
        missing = [MANIFEST_NAME] if package is None else self._missing(package)
        if package is not None and not missing:
            return package
        if self.fetch is None:
            raise NotCached(self.ref, missing, self.why_not)
        with writing(
            self.repository, lock_seconds=self.lock_seconds, cancelled=self.cancelled
        ) as incoming:
            return self._complete(Downloader(
                self.repository, self.fetch, incoming,
                progress=self.progress, cancelled=self.cancelled,
            ))  # fmt: skip

    def _complete(self, downloader: Downloader) -> PackageDir:
        # Looked for again: who had the lock before may have brought it.
        package = self._cached()
        if package is None or not is_commit(package.root.name):
            commit = downloader.manifest(
                self.ref.effective_revision, expected_sha256=self.expected_sha256
            )
            package = self._load(commit)
        downloader.files(package.root.name, package.manifest, self._selected(package))
        return package

    def _cached(self) -> PackageDir | None:
        root = self.repository.locate(self.ref.effective_revision)
        if root is None:
            return None
        try:
            return self._load(root.name)
        except ManifestError as error:
            may_have_moved = self.fetch is not None and not self.ref.is_immutable
            if error.kind == "manifest_sha256_mismatch" and may_have_moved:
                return None
            raise

    def _load(self, commit: str) -> PackageDir:
        return load_package(
            self.ref, self.repository.snapshot(commit), self.repository.folder,
            runtime_abi=self.runtime_abi, strict=self.strict, expected_sha256=self.expected_sha256,
        )  # fmt: skip

    def _selected(self, package: PackageDir) -> tuple[Artifact, ...]:
        """The files of the scope, as far as the headers that are here can tell."""
        manifest = package.manifest
        if self.scope == "manifest":
            return ()
        if self.scope == "metadata":
            return (manifest.metadata,)
        if self.scope == "package":
            return manifest.artifacts
        stage = self.stage or StageRequest(0, manifest.layer_count)
        return stage.select(manifest, header_reader(package)).files

    def _missing(self, package: PackageDir) -> list[str]:
        """Paths of selected files that are not there, with a fetch also those of a wrong length."""
        found = []
        for artifact in self._selected(package):
            try:
                with open_artifact(
                    package.root, artifact.path, repository=package.repository
                ) as opened:
                    is_whole = opened.n_bytes == artifact.artifact_bytes
            except ArtifactError as error:
                if error.kind == "artifact_escapes_root":
                    raise self._escape(package, artifact, error) from error
                if error.kind != "missing_artifact":
                    raise
                is_whole = False
                if self.fetch is None:
                    found.append(artifact.path)
            if self.fetch is not None and not is_whole:
                found.append(artifact.path)
        return found

    def _escape(
        self, package: PackageDir, artifact: Artifact, error: ArtifactError
    ) -> ArtifactError:
        """The same refusal, with the way out where the hub's own client has made the link."""
        store = os.path.join(os.path.realpath(self.repository.cache), "blobs", "")
        if not os.path.realpath(package.root / artifact.path).startswith(store):
            return error
        return ArtifactError(
            error.kind, error.issue.message, artifact=artifact.path,
            hint="the hub's client linked it to its store of all repositories: remove this snapshot"
            " and download it here, or there with HF_HUB_DISABLE_SHARED_BLOBS=1",
        )  # fmt: skip
