"""Owns fetching the missing files of one stage from its coordinator, in their order.

It must not know how one file travels (`fetch.py`) nor how to go on without a peer: every failure
is a TransferError, and that means to resolve the package as if there were no peer. What was
installed until then is whole and stays.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.errors import Cancelled, PackageError, TransferError
from packages.layer_package.manifest import read_manifest
from packages.layer_package.model import MANIFEST_NAME, Artifact, Manifest
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.paths import open_artifact
from packages.layer_package.transfer.authorise import needed_artifacts
from packages.layer_package.transfer.fetch import Fetcher, Job
from packages.layer_package.transfer.frames import ByteStream
from packages.layer_package.transfer.limits import TransferLimits
from packages.layer_package.transfer.messages import ArtifactRequest
from packages.layer_package.transfer.mode import check_features
from packages.layer_package.transfer.place import Place, eligible_ref, place_of
from packages.layer_package.transfer.servable import header_reader, open_manifest, read_whole
from packages.layer_package.verification import verify_digest, verify_size

Progress = Callable[[int, int], None]
IsCancelled = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class StageLoad:
    """A stage assignment as its worker has it: layers [layer_start, layer_end)."""

    topology_id: str
    run_id: str
    stage_id: str
    package_ref: str
    manifest_sha256: str
    layer_start: int
    layer_end: int
    is_last: bool


class ArtifactClient:
    """Asks one coordinator. `connect` opens a new stream to it, authenticated as `peer_id` (32
    bytes); `cache_root` is the hub cache; `is_open` as in `Fetcher`.
    """

    def __init__(
        self,
        connect: Callable[[], ByteStream],
        peer_id: bytes,
        cache_root: Path,
        *,
        checksum_cache: ChecksumCache | None = None,
        limits: TransferLimits | None = None,
        is_open: bool = False,
    ) -> None:
        """`checksum_cache` spares hashing files that are there already."""
        self._limits = TransferLimits() if limits is None else limits
        self._fetcher = Fetcher(connect, self._limits, is_open)
        self._peer_id = peer_id
        self._cache_root = cache_root
        self._checksum_cache = checksum_cache

    def fetch_stage(
        self,
        load: StageLoad,
        *,
        features: Collection[str],
        progress: Progress | None = None,
        cancelled: IsCancelled | None = None,
    ) -> PackageDir:
        """The package with every file of the stage in place.

        `features` are those that the coordinator advertises under `skippy-stage/2`. `progress`
        counts bytes of the files that were missing, without the manifest. TransferError with the
        kind of what went wrong; Cancelled, the one that does not mean to go on without a peer.
        """
        try:
            return self._fetch_stage(load, features, progress, cancelled)
        except (TransferError, Cancelled):
            raise
        except PackageError as e:
            raise TransferError(e.kind, e.issue.message, artifact=e.issue.artifact) from e
        except OSError as e:
            raise TransferError(
                "transfer_not_stored", f"the cache cannot take the file: {e.strerror}"
            ) from e

    def _fetch_stage(
        self,
        load: StageLoad,
        features: Collection[str],
        progress: Progress | None,
        cancelled: IsCancelled | None,
    ) -> PackageDir:
        check_features(features)
        ref = eligible_ref(load.package_ref)
        self._cache_root.mkdir(parents=True, exist_ok=True)
        place = place_of(self._cache_root, ref)
        manifest = self._manifest(load, place, cancelled)
        count = _Count(progress)
        seen: set[str] = set()
        for with_assumed in (False, True):
            artifacts = [
                a for a in _needed(manifest, load, place, with_assumed) if a.path not in seen
            ]
            seen.update(artifact.path for artifact in artifacts)
            missing = [a for a in artifacts if not self._is_there(place, manifest, a, cancelled)]
            count.expect(missing)
            for artifact in missing:
                job = Job(_request(load, self._peer_id, artifact), artifact.sha256)
                self._fetcher.fetch(job, place, count.advance, cancelled)
                count.finish(artifact)
        return PackageDir(place.root, ref, place.repository, manifest)

    def _manifest(self, load: StageLoad, place: Place, cancelled: IsCancelled | None) -> Manifest:
        here = self._manifest_here(load, place)
        if here is not None:
            return here
        found: list[Manifest] = []
        sha256 = load.manifest_sha256.lower()

        def check(data: bytes) -> None:
            found.append(read_manifest(data))

        job = Job(_request(load, self._peer_id, None), sha256, check)
        self._fetcher.fetch(job, place, cancelled=cancelled)
        return found[0]

    def _manifest_here(self, load: StageLoad, place: Place) -> Manifest | None:
        try:
            with open_manifest(place) as opened:
                if opened.n_bytes > self._limits.manifest_bytes:
                    return None
                manifest = read_manifest(read_whole(opened))
        except PackageError:
            return None
        return manifest if manifest.sha256 == load.manifest_sha256.lower() else None

    def _is_there(
        self, place: Place, manifest: Manifest, artifact: Artifact, cancelled: IsCancelled | None
    ) -> bool:
        try:
            with open_artifact(place.root, artifact.path, repository=place.repository) as opened:
                verify_size(opened, artifact)
                verify_digest(
                    opened, manifest, artifact, cache=self._checksum_cache, cancelled=cancelled
                )
        except Cancelled:
            raise
        except PackageError:
            return False
        return True


def fetch_or_resolve(
    client: ArtifactClient,
    load: StageLoad,
    resolve: Callable[[], PackageDir],
    *,
    features: Collection[str],
    log: Callable[[TransferError], None] = lambda reason: None,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> PackageDir:
    """The package with the coordinator's help where that works, else what `resolve` gives.

    `log` is told why a transfer failed; nothing of it fails the load. Cancelled, and what
    `resolve` raises.
    """
    try:
        return client.fetch_stage(load, features=features, progress=progress, cancelled=cancelled)
    except TransferError as reason:
        log(reason)
    return resolve()


class _Count:
    """Bytes of all missing files, for a caller that shows how far it is."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0
        self._all = 0

    def expect(self, artifacts: Collection[Artifact]) -> None:
        self._all += sum(artifact.artifact_bytes for artifact in artifacts)

    def advance(self, n_bytes: int) -> None:
        if self._progress is not None:
            self._progress(self._done + n_bytes, self._all)

    def finish(self, artifact: Artifact) -> None:
        self._done += artifact.artifact_bytes


def _needed(
    manifest: Manifest, load: StageLoad, place: Place, with_assumed: bool
) -> list[Artifact]:
    """What the stage needs as far as is known by now.

    Embeddings that are selected only because nothing says that they are not needed come last, when
    the headers of the stage's other files are here and may say so: they can be the largest file.
    """
    artifacts, selection = needed_artifacts(
        manifest, load.layer_start, load.layer_end,
        is_last=load.is_last, fragment_of=header_reader(place),
    )  # fmt: skip
    assumed = any(note.kind == "embeddings_assumed" for note in selection.notes)
    return [a for a in artifacts if with_assumed or not (assumed and a.role == "embeddings")]


def _request(load: StageLoad, peer_id: bytes, artifact: Artifact | None) -> ArtifactRequest:
    return ArtifactRequest(
        peer_id, load.topology_id, load.run_id, load.stage_id, load.package_ref,
        load.manifest_sha256.lower(),
        MANIFEST_NAME if artifact is None else artifact.path,
        0,
        None if artifact is None else artifact.artifact_bytes,
        load.manifest_sha256.lower() if artifact is None else artifact.sha256,
    )  # fmt: skip

