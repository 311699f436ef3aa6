"""Owns SHA-256 of an opened file: by pieces, in constant memory, from its descriptor.

It must not know manifests, policy or caches. One buffer is read into and hashed again and again;
`hashlib` lets other threads run meanwhile.
"""

import hashlib
import os
from collections.abc import Callable

from packages.layer_package.errors import ArtifactError, Cancelled
from packages.layer_package.paths import OpenedFile

PIECE_BYTES = 4 << 20

Progress = Callable[[int, int], None]
IsCancelled = Callable[[], bool]


def digest_of(
    opened: OpenedFile,
    *,
    artifact: str | None = None,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> str:
    """SHA-256 of the whole file, 64 hex digits in lower case.

    `progress(bytes done, bytes in all)` after each piece of 4 MiB and at the end, `cancelled()`
    before each. `artifact` is the path that errors name. ArtifactError `artifact_unreadable` when
    the system cannot read it, `artifact_changed` when it is another file afterwards; Cancelled.
    """
    buffer = memoryview(bytearray(min(PIECE_BYTES, max(opened.n_bytes, 1))))
    sha256 = hashlib.sha256()
    done = 0
    while done < opened.n_bytes:
        if cancelled is not None and cancelled():
            raise Cancelled("checking a digest", artifact=artifact)
        n_read = _read(opened, buffer, done, artifact)
        if n_read == 0:
            raise _changed(opened, done, artifact)
        sha256.update(buffer[:n_read])
        done += n_read
        if progress is not None:
            progress(done, opened.n_bytes)
    if not opened.still_same():
        raise _changed(opened, done, artifact)
    return sha256.hexdigest()


def _read(opened: OpenedFile, buffer: memoryview, done: int, artifact: str | None) -> int:
    # Not beyond the length that was measured: what is appended meanwhile is not that file.
    wanted = min(len(buffer), opened.n_bytes - done)
    try:
        return os.preadv(opened.fd, [buffer[:wanted]], done)
    except OSError as e:
        raise ArtifactError(
            "artifact_unreadable",
            f"byte {done} of {opened.n_bytes} cannot be read: {e.strerror}",
            artifact=artifact,
        ) from e


def _changed(opened: OpenedFile, done: int, artifact: str | None) -> ArtifactError:
    return ArtifactError(
        "artifact_changed",
        f"the file changed while it was read: {done} of {opened.n_bytes} bytes were hashed",
        artifact=artifact,
        hint="nothing may write to a package while it is checked",
    )
