"""Owns the way from a reference to a package on this machine: a local folder or the hub's cache.

It must not know how files are fetched or installed (`hub_package.py`), nor whether they are sound:
a load checks what it opens (`checks.py`). Nothing is downloaded unless the caller passes a `fetch`
and no offline mode holds.
"""

from collections.abc import Iterable
from pathlib import Path

from packages.layer_package.cache_roots import is_offline
from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.download import Downloader, Fetch
from packages.layer_package.errors import RefError, Report
from packages.layer_package.hub_cache import HubRepository
from packages.layer_package.hub_install import LOCK_SECONDS, writing
from packages.layer_package.hub_package import HubResolver, NotCached, Scope, load_package
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.references import PackageRef
from packages.layer_package.selection import StageRequest


def resolve_package(
    ref: PackageRef | str,
    *,
    scope: Scope,
    layers: tuple[int, int] | None = None,
    stage: StageRequest | None = None,
    offline: bool | None = None,
    runtime_abi: str | None = None,
    fetch: Fetch | None = None,
    cache: Path | None = None,
    strict: bool = False,
    expected_manifest_sha256: str | None = None,
    report: Report | None = None,
    lock_seconds: float = LOCK_SECONDS,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> PackageDir:
    """The package, with the files that `scope` selects present when it is one of a hub.

    "stage" takes `stage`, or `layers` as (start, end), or else all layers. `fetch=None`, or
    `offline` (default: `HF_HUB_OFFLINE`), means that nothing is downloaded; over the network
    `hub_fetch.fetch_from_hub` does it. `cache` is the hub cache's root. A local folder is only
    read: what it lacks is told by the checks, and so are a manifest's warnings. `progress` counts
    downloaded bytes.

    RefError `not_a_package_ref`; CacheError `not_cached` (a NotCached), `corrupt_cache_ref`, those
    of a download; ManifestErrors and `manifest_sha256_mismatch`; SelectionErrors; ArtifactErrors of
    files that may not be opened; Cancelled. Warning `moving_revision` into `report`.
    """
    ref = PackageRef.parse(ref) if isinstance(ref, str) else ref
    if ref.kind == "local" and ref.path is not None:
        return load_package(
            ref, ref.path, runtime_abi=runtime_abi, strict=strict,
            expected_sha256=expected_manifest_sha256,
        )  # fmt: skip
    if ref.kind != "hf":
        raise RefError("not_a_package_ref", "a single model file is not a layer package")
    if ref.is_moving and report is not None:
        report.warn(
            "moving_revision",
            f"{ref.canonical} follows {ref.effective_revision!r}, which may become another package"
            " at any time; name a commit",
        )
    if stage is None and layers is not None:
        stage = StageRequest(*layers)
    return HubResolver(
        ref, HubRepository.of(ref, cache), scope, stage,
        fetch=None if is_offline(offline) else fetch,
        why_not="no download was asked for" if fetch is None else "this process is offline",
        runtime_abi=runtime_abi, strict=strict, expected_sha256=expected_manifest_sha256,
        lock_seconds=lock_seconds, progress=progress, cancelled=cancelled,
    ).resolve()  # fmt: skip


def repair_package(
    package: PackageDir,
    paths: Iterable[str],
    *,
    fetch: Fetch,
    offline: bool | None = None,
    lock_seconds: float = LOCK_SECONDS,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> None:
    """After a check refused these files of a hub package: hash them, move what is bad to the
    quarantine, and fetch that once more.

    Call it once and check again. ArtifactError when what comes is wrong again; CacheError
    `not_cached` when offline; RefError for a local package; those of a download.
    """
    wanted = {*paths}
    artifacts = [a for a in package.manifest.artifacts if a.path in wanted]
    if package.repository is None:
        raise RefError("not_a_package_ref", "a local package cannot be fetched again")
    if is_offline(offline):
        raise NotCached(package.ref, [a.path for a in artifacts], "this process is offline")
    repository = HubRepository.of(package.ref, package.repository.parent)
    with writing(repository, lock_seconds=lock_seconds, cancelled=cancelled) as incoming:
        Downloader(repository, fetch, incoming, progress=progress, cancelled=cancelled).files(
            package.root.name, package.manifest, artifacts, hash_present=True
        )
