"""Owns one file from a peer into the managed cache: request, answer, body, verification, install.

It must not know which files a stage needs (`client.py`). What a partial cost is kept when the
stream broke, so that the next try goes on from there; it is deleted when its bytes are wrong.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from packages.layer_package.errors import Cancelled, TransferError
from packages.layer_package.hub_cache import open_folder
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.transfer.frames import (
    ByteStream,
    Deadline,
    read_frame,
    read_some,
    write_all,
    write_frame,
)
from packages.layer_package.transfer.limits import TransferLimits
from packages.layer_package.transfer.messages import (
    DISABLED,
    INVALID_OFFSET,
    STREAM_KIND,
    ArtifactRequest,
    ArtifactResponse,
    SubprotocolOpen,
)
from packages.layer_package.transfer.partial import Partial
from packages.layer_package.transfer.place import Place

_REFUSED = {DISABLED: "transfer_disabled", INVALID_OFFSET: "invalid_transfer_offset"}
# The bytes of a partial are no use after these; after the first two a fresh start may help.
_FROM_ZERO = {"artifact_sha256_mismatch", "invalid_transfer_offset"}
_SPOILED = {*_FROM_ZERO, "manifest_sha256_mismatch", "transfer_overrun"}


@dataclass(frozen=True, slots=True)
class Job:
    """A file to fetch: `request` with offset 0 and the expected digest, and for all but the
    manifest the expected size; `check` may still refuse the verified bytes of a manifest.
    """

    request: ArtifactRequest
    sha256: str
    check: Callable[[bytes], None] | None = None

    @property
    def path(self) -> str:
        """The manifest-relative path."""
        return self.request.relative_path

    @property
    def is_manifest(self) -> bool:
        """Whether its size is known from the peer alone."""
        return self.path == MANIFEST_NAME


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches files over streams that `connect` opens to the coordinator, one for each request.

    `is_open` says that the mesh writes the envelope and the kind byte itself.
    """

    connect: Callable[[], ByteStream]
    limits: TransferLimits
    is_open: bool = False

    def fetch(
        self,
        job: Job,
        place: Place,
        progress: Callable[[int], None] = lambda n_bytes: None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """Put the file into its place. `progress(bytes of this file so far)` after each piece.

        TransferError, OSError, Cancelled; then nothing is in its place that was not there before.
        """
        *folders, name = job.path.split("/")
        names = [place.repository.name, "snapshots", place.snapshot, *folders]
        # Every folder below the cache is entered without following a link, so that the file cannot
        # land outside the repository's.
        folder = open_folder(place.repository.parent, names, create=True)
        try:
            self._fetch(job, folder, name, progress, cancelled)
        finally:
            os.close(folder)

    def _fetch(
        self,
        job: Job,
        folder: int,
        name: str,
        progress: Callable[[int], None],
        cancelled: Callable[[], bool] | None,
    ) -> None:
        limit = job.request.expected_size
        # A manifest is small and its size is the peer's word: never continued.
        first = Partial.resume(folder, name, -1 if limit is None else limit)
        was_resumed = first.n_bytes > 0
        try:
            self._fill(job, first, progress, cancelled)
        except TransferError as e:
            if not was_resumed or e.kind not in _FROM_ZERO:
                raise
            self._fill(job, Partial.create(folder, name), progress, cancelled)

    def _fill(
        self,
        job: Job,
        partial: Partial,
        progress: Callable[[int], None],
        cancelled: Callable[[], bool] | None,
    ) -> None:
        try:
            self._receive(job, partial, progress, cancelled)
            found = partial.sha256(cancelled)
            if found != job.sha256:
                kind = "manifest_sha256_mismatch" if job.is_manifest else "artifact_sha256_mismatch"
                raise TransferError(
                    kind, f"the peer's bytes have {found}, not {job.sha256}", artifact=job.path
                )
            if job.check is not None:
                job.check(partial.read())
            partial.install()
        except TransferError as e:
            if e.kind in _SPOILED:
                partial.discard()
            raise
        except OSError:
            # A full disk must not be kept full by what cannot be finished.
            partial.discard()
            raise
        finally:
            partial.close()

    def _receive(
        self,
        job: Job,
        partial: Partial,
        progress: Callable[[int], None],
        cancelled: Callable[[], bool] | None,
    ) -> None:
        try:
            stream = self.connect()
        except OSError as e:
            raise TransferError(
                "transfer_disconnected", f"the coordinator cannot be reached: {e.strerror}"
            ) from e
        try:
            n_bytes = self._ask(stream, job, partial.n_bytes)
            progress(partial.n_bytes)
            while partial.n_bytes < n_bytes:
                if cancelled is not None and cancelled():
                    raise Cancelled("a transfer", artifact=job.path)
                self._piece(stream, job, partial, n_bytes)
                progress(partial.n_bytes)
            if read_some(stream, 1):
                raise TransferError(
                    "transfer_overrun", f"the peer sends more than the announced {n_bytes} bytes",
                    artifact=job.path,
                )  # fmt: skip
        finally:
            stream.close()

    def _ask(self, stream: ByteStream, job: Job, offset: int) -> int:
        """Send the request; bytes of the whole file if the answer is as expected."""
        deadline = Deadline.after(self.limits.open_seconds, "an answer")
        request = replace(job.request, offset=offset).encode()
        if not self.is_open:
            write_frame(stream, SubprotocolOpen().encode(), self.limits.frame_bytes)
            write_all(stream, STREAM_KIND)
        write_frame(stream, request, self.limits.frame_bytes)
        answer = ArtifactResponse.decode(read_frame(stream, deadline, self.limits.frame_bytes))
        if not answer.accepted:
            # Only the three texts are known; a peer's own words go nowhere.
            kind = _REFUSED.get(answer.error or "", "artifact_unavailable")
            raise TransferError(kind, "the coordinator refused the file", artifact=job.path)
        self._check_size(job, answer.total_size)
        if answer.sha256 != job.sha256:
            raise TransferError(
                "artifact_sha256_mismatch",
                f"the peer announces {answer.sha256 or 'no digest'}, not {job.sha256}",
                artifact=job.path,
            )
        return answer.total_size

    def _check_size(self, job: Job, total_size: int) -> None:
        expected = job.request.expected_size
        if expected is None and total_size > self.limits.manifest_bytes:
            raise TransferError(
                "manifest_too_large",
                f"the peer announces {total_size} bytes, the limit is {self.limits.manifest_bytes}",
                artifact=job.path,
            )
        if expected not in (None, total_size):
            raise TransferError(
                "artifact_size_mismatch",
                f"the peer announces {total_size} bytes, the manifest says {expected}",
                artifact=job.path,
            )

    def _piece(self, stream: ByteStream, job: Job, partial: Partial, n_bytes: int) -> None:
        deadline = Deadline.after(self.limits.idle_seconds, "a piece")
        end = min(n_bytes, partial.n_bytes + self.limits.piece_bytes)
        while partial.n_bytes < end:
            data = read_some(stream, end - partial.n_bytes)
            if not data:
                raise TransferError(
                    "transfer_truncated",
                    f"the stream ended after {partial.n_bytes} of {n_bytes} bytes",
                    artifact=job.path,
                )
            partial.write(data)
            deadline.check()
