"""Owns reading the bytes of `model-package.json` (check 1): a regular file of at most 16 MiB.

It must not know what is in it.
"""

import os
from pathlib import Path

from packages.layer_package.errors import ArtifactError, ManifestError
from packages.layer_package.model import MANIFEST_NAME, MAX_MANIFEST_BYTES
from packages.layer_package.opened_file import OpenedFile, open_below


def read_manifest_file(root: Path, repository: Path | None = None) -> bytes:
    """The bytes of the manifest in the folder `root`; `repository` as for `open_artifact`.

    ManifestError `missing_manifest` when there is no regular file of that name that may be read (a
    local package's may be no symbolic link), `manifest_too_large`.
    """
    try:
        opened = open_below(root, MANIFEST_NAME, repository)
    except ArtifactError as e:
        raise ManifestError(
            "missing_manifest", f"the manifest {e.issue.message}", artifact=MANIFEST_NAME,
            hint=f"give the folder that holds {MANIFEST_NAME}",
        ) from e  # fmt: skip
    with opened:
        check_length(opened.n_bytes)
        return _bytes_of(opened)


def check_length(n_bytes: int) -> None:
    """ManifestError `manifest_too_large`."""
    if n_bytes > MAX_MANIFEST_BYTES:
        raise ManifestError(
            "manifest_too_large",
            f"the manifest has {n_bytes} bytes, the limit is {MAX_MANIFEST_BYTES}",
            artifact=MANIFEST_NAME,
        )


def _bytes_of(opened: OpenedFile) -> bytes:
    """All, but never more than one byte past the limit: the file may grow while it is read."""
    pieces: list[bytes] = []
    n_bytes = 0
    while n_bytes <= MAX_MANIFEST_BYTES:
        try:
            piece = os.pread(opened.fd, MAX_MANIFEST_BYTES + 1 - n_bytes, n_bytes)
        except OSError as e:
            raise ManifestError(
                "missing_manifest", f"the manifest cannot be read: {e.strerror}",
                artifact=MANIFEST_NAME,
            ) from e  # fmt: skip
        if not piece:
            break
        pieces.append(piece)
        n_bytes += len(piece)
    return b"".join(pieces)
