"""Owns fetching one file of a package from a Hugging Face hub, through `huggingface_hub`.

That library is the optional extra `hub`, imported only when a file is really fetched. It must not
know the cache: the library is told a private folder and not its cache, because its cache may link a
blob to a store outside the repository's folder, which a package may not do
(KNOWLEDGE/pitfalls/hub-shared-blobs-leave-the-repository.md). Messages name kinds of failure and
HTTP codes, never the library's text, which may hold addresses and paths.
"""

import importlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packages.layer_package.download import FetchRequest
from packages.layer_package.errors import ArtifactError, CacheError, Cancelled, ManifestError
from packages.layer_package.model import MANIFEST_NAME


def fetch_from_hub(request: FetchRequest) -> str:
    """Put the file at `request.target`; the commit it is of. A `Fetch` for `resolve_package`.

    The hub, the token and the proxies are those that the library's own variables name. CacheError
    `hub_client_missing`, `download_failed`; ManifestError `missing_manifest`, `manifest_too_large`;
    ArtifactError `missing_artifact`, `artifact_size_mismatch`; Cancelled. OSError of the disk.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        hub_errors: Any = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise CacheError(
            "hub_client_missing",
            "downloading needs the library huggingface_hub, which is not installed",
            artifact=request.path,
            hint='pip install "mesh-specialize[hub]"',
        ) from error
    count = _Count(request)
    folder = request.target.parent / "hub"
    where: dict[str, Any] = {
        "repo_id": request.repo_id, "filename": request.path, "local_dir": folder,
        # Its own cache is not asked: a bad file there would be copied again and again.
        "cache_dir": folder / "cache",
    }  # fmt: skip
    try:
        seen = hub.hf_hub_download(**where, revision=request.revision, dry_run=True)
        commit = str(seen.commit_hash)
        _check_length(request, seen.file_size)
        path = hub.hf_hub_download(**where, revision=commit, tqdm_class=_bar_of(count))
    except (
        OSError, ValueError, RuntimeError,
        hub_errors.EntryNotFoundError, hub_errors.HTTPError, hub_errors.XetDownloadError,
    ) as error:  # fmt: skip
        if count.was_cancelled:
            raise Cancelled("downloading a package", artifact=request.path) from error
        raise _refusal(request, error, hub_errors) from error
    if count.was_cancelled:
        raise Cancelled("downloading a package", artifact=request.path)
    os.replace(Path(path), request.target)
    return commit


def _check_length(request: FetchRequest, n_bytes: int | None) -> None:
    """Refuse before the first byte what the manifest, or the limit of one, refuses anyway."""
    if n_bytes is None:
        return
    if request.n_bytes is not None and n_bytes != request.n_bytes:
        raise ArtifactError(
            "artifact_size_mismatch",
            f"the hub's file has {n_bytes} bytes, the manifest says {request.n_bytes}",
            artifact=request.path,
        )
    if n_bytes > request.max_bytes:
        raise ManifestError(
            "manifest_too_large", f"it has {n_bytes} bytes, the limit is {request.max_bytes}"
        )


def _refusal(request: FetchRequest, error: Exception, hub_errors: Any) -> Exception:
    """The library's error as one of ours; an OSError of the disk as it is."""
    # Its "not in the cache" means that the hub was not reached, and is a missing entry by type too.
    is_absent = isinstance(error, hub_errors.EntryNotFoundError) and not isinstance(
        error, hub_errors.LocalEntryNotFoundError
    )
    if is_absent and request.path == MANIFEST_NAME:
        return ManifestError(
            "missing_manifest", f"{request.repo_id} has no {MANIFEST_NAME} at {request.revision}"
        )
    if is_absent:
        return ArtifactError(
            "missing_artifact",
            f"{request.repo_id} has no such file at {request.revision}",
            artifact=request.path,
        )
    is_of_disk = isinstance(error, OSError) and error.errno is not None
    if is_of_disk and not isinstance(error, ConnectionError):
        return error
    code = getattr(getattr(error, "response", None), "status_code", None)
    return CacheError(
        "download_failed",
        f"from {request.repo_id} at {request.revision}: {type(error).__name__}"
        + (f", HTTP {code}" if isinstance(code, int) else ""),
        artifact=request.path,
    )


@dataclass(slots=True)
class _Count:
    """Bytes of one file; the library may show them on several bars (network, disk) at once."""

    request: FetchRequest
    was_cancelled: bool = False
    done_bytes: dict[int, int] = field(default_factory=dict)

    def add(self, bar: int, n_bytes: int) -> None:
        """More bytes on that bar. Cancelled when the caller wants no more."""
        self.done_bytes[bar] = self.done_bytes.get(bar, 0) + n_bytes
        if self.request.cancelled is not None and self.request.cancelled():
            self.was_cancelled = True
            raise Cancelled("downloading a package", artifact=self.request.path)
        if self.request.progress is not None and self.request.n_bytes is not None:
            done = min(max(self.done_bytes.values()), self.request.n_bytes)
            self.request.progress(done, self.request.n_bytes)


def _bar_of(count: _Count) -> type:
    """A progress bar for the library that shows nothing and counts."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg, misc, unused-ignore]
        def __init__(self, *_: object, total: float | None = None, **__: object) -> None:
            # Silent whatever the library passes; it passes words that tqdm does not know.
            super().__init__(total=total, disable=True)

        def update(self, n: float | None = 1) -> bool | None:
            count.add(id(self), int(n or 0))
            return None

    return Bar
