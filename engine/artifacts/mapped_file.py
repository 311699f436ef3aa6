"""Owns opening a model file: a regular file, mapped for reading, with a path fit for a message.

Knows nothing of any format. Never waits (a FIFO is refused, not read) and leaves descriptors 0, 1
and 2 alone even where the host has closed them. Failures are ModelError with the path and the
system's reason. A file that shrinks while it is mapped is out of scope: reading the missing part
kills the process with SIGBUS, as in every program that maps files.
"""

import mmap
import os
import stat
from typing import NamedTuple

from engine.errors import InvalidArgument, ModelError

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}
_SHOWN_CHARACTERS = 4096


class FileId(NamedTuple):
    """What tells two files apart whatever they are called."""

    device: int
    inode: int


class MappedFile:
    """A regular file mapped read-only. `path` (for the system), `shown` (for people), `n_bytes`."""

    def __init__(self, path: PathLike) -> None:
        """Map the file. ModelError when it cannot be opened, is not a regular file, or is empty."""
        raw = path_bytes(path)
        self.path = os.fsdecode(raw)
        self.shown = printable(raw)
        try:
            self._open(raw)
        except OSError as e:
            raise ModelError(f"cannot open {self.shown}: {e.strerror}") from e
        except ValueError as e:
            # The file lost bytes after its length was read, and mmap noticed.
            raise ModelError(f"cannot open {self.shown}: {e}") from e

    def _open(self, raw: bytes) -> None:
        """Open above the standard descriptors, look, map, and close again.

        mmap keeps a duplicate on the lowest free descriptor, so the low ones stay taken until then.
        """
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        descriptors = [os.open(raw, flags)]
        try:
            while descriptors[-1] <= 2:
                descriptors.append(os.open(raw, flags))
            self._map(descriptors[-1])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _map(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
            raise ModelError(f"cannot open {self.shown}: it is {kind}, not a regular file")
        if found.st_size == 0:
            raise ModelError(f"cannot use {self.shown}: the file has 0 bytes")
        self.file_id = FileId(found.st_dev, found.st_ino)
        mapped = mmap.mmap(descriptor, found.st_size, access=mmap.ACCESS_READ)
        self.n_bytes = len(mapped)
        self._view: memoryview | None = memoryview(mapped)

    @property
    def view(self) -> memoryview:
        """The whole file, read-only. InvalidArgument after `close`."""
        if self._view is None:
            raise InvalidArgument(f"{self.shown} is closed")
        return self._view

    def close(self) -> None:
        """Let go of the file; the mapping ends with the last view that somebody still holds."""
        self._view = None


def path_bytes(path: PathLike) -> bytes:
    """The path as the system takes it, whatever the locale. InvalidArgument if it is not one."""
    try:
        raw = _encoded(os.fspath(path))
    except (TypeError, UnicodeEncodeError) as e:
        raise InvalidArgument(f"{path!a} is not a path: {e}") from e
    if b"\0" in raw:
        raise InvalidArgument(f"{printable(raw)} is not a path: it contains a NUL")
    return raw


def _encoded(path: str | bytes) -> bytes:
    if isinstance(path, bytes):
        return path
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        # An ASCII locale cannot spell what the file system can.
        return path.encode("utf-8", "surrogateescape")


def printable(text: bytes | str, limit: int = _SHOWN_CHARACTERS) -> str:
    """Text from outside as quoted, valid, one-line UTF-8: odd bytes and controls as escapes."""
    decoded = text if isinstance(text, str) else text.decode("utf-8", "backslashreplace")
    cut = decoded if len(decoded) <= limit else decoded[:limit] + "..."
    return "'" + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut) + "'"
