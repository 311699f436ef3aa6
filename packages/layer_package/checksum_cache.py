"""Owns the record that a file's digest was verified, so that it is not hashed at every load.

It must not know when a digest is needed (`verification.py`). Only successes are recorded. A record
is a hint of this user about this machine's files: anything odd about one is a miss, never an error,
and a record that cannot be written is a warning.

Choices. The name's digest runs over the domain tag with its zero byte, then each field with one;
digests as 64 hex digits. A record counts only when it and the folder belong to this user and
the folder is closed to all others, because whoever can write a record can vouch for any file.
"""

import contextlib
import hashlib
import json
import os
import secrets
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from packages.layer_package.cache_roots import checksum_cache_folder
from packages.layer_package.errors import Report
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.paths import OpenedFile

SCHEMA_VERSION = 1
MAX_RECORD_BYTES = 64 << 10
# A file touched within this time of its verification may change again with the same timestamps.
SETTLED_NANOS = 2_000_000_000
_DOMAIN = b"skippy-package-integrity-v1"
_NO_LAYER = 0xFFFFFFFF
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class ChecksumCache:
    """Verified digests in one folder, which is made with mode 0700 at the first record."""

    def __init__(self, folder: Path | None = None) -> None:
        """Of that folder, else `SKIPPY_PACKAGE_VERIFY_CACHE_DIR`, else the user's cache."""
        self.folder = checksum_cache_folder(folder)

    def hit(self, manifest: Manifest, artifact: Artifact, opened: OpenedFile) -> bool:
        """Whether this very file was verified before, and is untouched since."""
        expected = _expected(manifest, artifact, opened)
        try:
            with self._folder() as folder:
                found = _read_record(folder, record_name(manifest, artifact))
        except OSError:
            return False
        if found is None or found.keys() != {*expected, "verified_unix_nanos"}:
            return False
        # Types too: to Python `true` and `1.0` equal 1.
        if any(type(found[k]) is not type(v) or found[k] != v for k, v in expected.items()):
            return False
        verified, modified = found["verified_unix_nanos"], expected["modified_unix_nanos"]
        if type(verified) is not int or type(modified) is not int:
            return False
        return verified - modified >= SETTLED_NANOS

    def record(
        self,
        manifest: Manifest,
        artifact: Artifact,
        opened: OpenedFile,
        *,
        verified_unix_nanos: int | None = None,
        report: Report | None = None,
    ) -> bool:
        """Note that the file has the manifest's digest; whether that could be written.

        `verified_unix_nanos` is when hashing began, now if not given: the file must have been
        at rest by then. A failure gives the warning `checksum_cache_not_written`.
        """
        when = time.time_ns() if verified_unix_nanos is None else verified_unix_nanos
        content = {**_expected(manifest, artifact, opened), "verified_unix_nanos": when}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._folder() as folder:
                _write_record(folder, record_name(manifest, artifact), content)
        except OSError as e:
            if report is not None:
                report.warn(
                    "checksum_cache_not_written",
                    f"the verified digest could not be recorded: {e.strerror}",
                    artifact=artifact.path,
                )
            return False
        return True

    @contextlib.contextmanager
    def _folder(self) -> Iterator[int]:
        """A descriptor of the folder. OSError when it is not a private one of this user."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid():
                raise PermissionError(0, "the cache folder belongs to another user")
            if found.st_mode & 0o022:
                # Closing it now would not tell which of its records others have written.
                raise PermissionError(0, "the cache folder is open to other users' records")
            if found.st_mode & 0o077:
                os.fchmod(folder, 0o700)
            yield folder
        finally:
            os.close(folder)


def record_name(manifest: Manifest, artifact: Artifact) -> str:
    """File name of the record of one artifact of one manifest."""
    layer = _NO_LAYER if artifact.layer_index is None else artifact.layer_index
    n_bytes = struct.pack("<Q", artifact.artifact_bytes)
    fields = (
        _DOMAIN, manifest.sha256.encode(), artifact.role.encode(), struct.pack("<I", layer),
        artifact.path.encode(), artifact.sha256.encode(), n_bytes,
    )  # fmt: skip
    return hashlib.sha256(b"".join(field + b"\0" for field in fields)).hexdigest() + ".json"


def _expected(manifest: Manifest, artifact: Artifact, opened: OpenedFile) -> dict[str, int | str]:
    device, inode, n_bytes, modified, changed = opened.identity
    return {
        "schema_version": SCHEMA_VERSION,
        "manifest_sha256": manifest.sha256,
        "artifact_sha256": artifact.sha256,
        "artifact_bytes": artifact.artifact_bytes,
        "file_len": n_bytes,
        "modified_unix_nanos": modified,
        "changed_unix_nanos": changed,
        "device": device,
        "inode": inode,
    }


def _read_record(folder: int, name: str) -> dict[str, object] | None:
    """The record's members, None when it is none of ours. OSError when it cannot be read."""
    descriptor = os.open(name, _READ, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return None
        data = os.read(descriptor, MAX_RECORD_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_RECORD_BYTES:
        return None
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _write_record(folder: int, name: str, content: dict[str, int | str]) -> None:
    """Temporary and rename. Not synced: a record that a crash tore is a miss."""
    temporary = f".{os.getpid()}-{secrets.token_hex(8)}.tmp"
    descriptor = os.open(temporary, _WRITE, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(json.dumps(content, indent=2).encode() + b"\n")
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
