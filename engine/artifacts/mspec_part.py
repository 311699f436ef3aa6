"""Owns the unfinished .mspec file on the disk: placed writes, reading back, and the last steps.

Knows no order of calls; that is `mspec_writer.py`. Errors of the system come out as OSError; the
writer names them.
"""

import hashlib
import os
import stat

from engine.artifacts.mapped_file import printable
from engine.artifacts.mspec_format import HEADER_BYTES, MspecObject, aligned
from engine.errors import IoFailure

_READ_BYTES = 4 << 20


class PartFile:
    """The open file; `is_open` until `close`."""

    def __init__(self, path: bytes) -> None:
        """Open it, or make it where it is missing."""
        self._path = path
        self._descriptor = open_own(path)
        self.is_open = True

    def put(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of the data; a gap before it becomes zeros."""
        write_all(self._descriptor, data, offset)

    def cut(self, end: int) -> None:
        """Drop everything from `end` on, and any header."""
        os.ftruncate(self._descriptor, end)
        self.put(bytes(HEADER_BYTES), 0)

    def holds(self, entry: MspecObject) -> bool:
        """Whether the object is there as noted, with nothing but zeros after it."""
        end = entry.offset + entry.length
        digest = hashlib.sha256()
        for start in range(entry.offset, end, _READ_BYTES):
            digest.update(os.pread(self._descriptor, min(_READ_BYTES, end - start), start))
        zeros = os.pread(self._descriptor, aligned(end) - end, end)
        return digest.hexdigest() == entry.sha256 and not any(zeros)

    def seal(self, header: bytes, target: bytes) -> None:
        """Make it the file at `target`."""
        # The header vouches for everything else, so it goes to the disk after everything else.
        os.fsync(self._descriptor)
        self.put(header, 0)
        os.fsync(self._descriptor)
        os.replace(self._path, target)

    def remove(self) -> None:
        """Delete it."""
        os.unlink(self._path)
        self.close()

    def close(self) -> None:
        """Let go of it; it stays."""
        if self.is_open:
            self.is_open = False
            os.close(self._descriptor)


def open_own(path: bytes) -> int:
    """Descriptor for reading and writing one of the writer's own files, made where it is missing.

    IoFailure where something else than a regular file has the name; a link is not followed.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IoFailure(f"cannot write {printable(path)}: it is not a regular file")
    return descriptor


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write in as many pieces as the system wants; what stops it half-way is raised by the next."""
    left = memoryview(data)
    while left:
        n_written = os.pwrite(descriptor, left, offset)
        left, offset = left[n_written:], offset + n_written
