"""Owns when a file's digest is verified, and holding an opened file against the manifest.

It must not know which files a stage needs, nor fetch any. Choice: the operator's
`SKIPPY_VERIFY_PACKAGE_SHA` can only add verification; `verify=False` does not undo it.
"""

import os
import time

from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.digests import IsCancelled, Progress, digest_of
from packages.layer_package.errors import ArtifactError, Report
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.paths import OpenedFile
from packages.layer_package.references import PackageRef

VERIFY_VARIABLE = "SKIPPY_VERIFY_PACKAGE_SHA"


def must_verify(ref: PackageRef, verify: bool | None = None) -> bool:
    """Whether the files that are about to be used are hashed.

    Of a hub package always; of a local one when `verify` is true or `SKIPPY_VERIFY_PACKAGE_SHA`
    is set to anything but empty, `0` or `false` (in any case). ArtifactError `checksum_required`
    for `verify=False` on a hub package.
    """
    if ref.kind == "hf":
        if verify is False:
            raise ArtifactError(
                "checksum_required",
                f"verify=False for {ref.canonical}; what came from a hub is always verified",
                hint="leave `verify` out; a checksum cache makes repeated loads fast",
            )
        return True
    return bool(verify) or os.environ.get(VERIFY_VARIABLE, "").lower() not in ("", "0", "false")


def verify_size(opened: OpenedFile, artifact: Artifact) -> None:
    """ArtifactError `artifact_size_mismatch` unless the file has the manifest's bytes."""
    if opened.n_bytes != artifact.artifact_bytes:
        raise ArtifactError(
            "artifact_size_mismatch",
            f"the file has {opened.n_bytes} bytes, the manifest says {artifact.artifact_bytes}",
            pointer=f"{artifact.pointer}/artifact_bytes",
            artifact=artifact.path,
        )


def verify_digest(
    opened: OpenedFile,
    manifest: Manifest,
    artifact: Artifact,
    *,
    cache: ChecksumCache | None = None,
    report: Report | None = None,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> bool:
    """Check the digest; True when the file was hashed, False when `cache` vouched for it.

    ArtifactError `artifact_sha256_mismatch`, and what `digest_of` raises. A success goes into the
    cache; a warning about that goes into `report`.
    """
    if cache is not None and cache.hit(manifest, artifact, opened):
        return False
    # Taken before the first byte is read, so that a change during the hashing counts as recent.
    began = time.time_ns()
    found = digest_of(opened, artifact=artifact.path, progress=progress, cancelled=cancelled)
    if found != artifact.sha256:
        raise ArtifactError(
            "artifact_sha256_mismatch",
            f"the file has digest {found}, the manifest says {artifact.sha256}",
            pointer=f"{artifact.pointer}/sha256",
            artifact=artifact.path,
        )
    if cache is not None:
        cache.record(manifest, artifact, opened, verified_unix_nanos=began, report=report)
    return True
