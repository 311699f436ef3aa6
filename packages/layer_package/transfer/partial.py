"""Owns a file that grows under a hidden name and is installed whole or not at all.

It must not know peers or manifests. Everything goes through the descriptor of the folder, which
its opener reached without following a link. A partial is `.<name>.<pid>.<nanos>.part`, mode
0600 and locked while it is worked on, so that of two processes which fetch the same file neither
continues what the other is writing. The lock comes with a second look at the name: whoever held it
before may have installed the file meanwhile, and an installed file must not grow.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator

from packages.layer_package.errors import Cancelled

_PIECE_BYTES = 4 << 20
_MAX_TRIES = 8
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Partial:
    """The bytes so far of the file `name` in `folder`; `n_bytes` of them."""

    def __init__(self, folder: int, name: str, part: str, descriptor: int, n_bytes: int) -> None:
        """Of an open and locked partial; use `create` or `resume`."""
        self._folder = folder
        self._name = name
        self._part = part
        self._descriptor = descriptor
        self._installed = False
        self.n_bytes = n_bytes

    @classmethod
    def create(cls, folder: int, name: str) -> "Partial":
        """A new, empty one. OSError."""
        for _ in range(_MAX_TRIES):
            part = f".{name}.{os.getpid()}.{time.time_ns()}.part"
            descriptor = os.open(part, _FILE | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
            # Between the two calls a `resume` elsewhere may take the new file for one left behind.
            if _hold(folder, part, descriptor) is not None:
                return cls(folder, name, part, descriptor, 0)
        raise BlockingIOError(errno.EWOULDBLOCK, "others take every partial that is made")

    @classmethod
    def resume(cls, folder: int, name: str, limit: int) -> "Partial":
        """The largest that was left of at most `limit` bytes, or a new one; larger ones are
        deleted. What another process is at is left alone."""
        best: Partial | None = None
        for found in _left(folder, name):
            if found.n_bytes > limit:
                found.discard()
            elif best is None or found.n_bytes > best.n_bytes:
                if best is not None:
                    best.close()
                best = found
            else:
                found.close()
        return cls.create(folder, name) if best is None else best

    def write(self, data: bytes) -> None:
        """Append. OSError."""
        view = memoryview(data)
        while view:
            n_written = os.pwrite(self._descriptor, view, self.n_bytes)
            self.n_bytes += n_written
            view = view[n_written:]

    def sha256(self, cancelled: Callable[[], bool] | None = None) -> str:
        """Digest of the whole file, read back from the file. OSError, Cancelled."""
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(min(_PIECE_BYTES, max(1, self.n_bytes))))
        at = 0
        while n_read := os.preadv(self._descriptor, [buffer], at):
            if cancelled is not None and cancelled():
                raise Cancelled("the digest of a transfer")
            digest.update(buffer[:n_read])
            at += n_read
        return digest.hexdigest()

    def read(self) -> bytes:
        """The whole file; for one whose size is known to be small. OSError."""
        return os.pread(self._descriptor, self.n_bytes, 0)

    def install(self) -> None:
        """Put it in the place of `name`, whatever that was, lastingly. OSError."""
        os.fsync(self._descriptor)
        os.replace(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._installed = True
        os.fsync(self._folder)
        self.close()
        for found in _left(self._folder, self._name):
            found.discard()

    def discard(self) -> None:
        """Delete it."""
        if self._descriptor >= 0:
            if not self._installed:
                with contextlib.suppress(OSError):
                    os.unlink(self._part, dir_fd=self._folder)
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        """Leave it for a later `resume`, unless it is empty; after the others nothing."""
        if self._descriptor >= 0 and not self._installed and not self.n_bytes:
            with contextlib.suppress(OSError):
                os.unlink(self._part, dir_fd=self._folder)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _left(folder: int, name: str) -> Iterator[Partial]:
    """Every partial of `name` that is ours and nobody works on, locked."""
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9]{{1,20}}\.[0-9]{{1,20}}\.part")
    for part in os.listdir(folder):
        if not pattern.fullmatch(part):
            continue
        try:
            descriptor = os.open(part, _FILE, dir_fd=folder)
        except OSError:
            continue
        held = _hold(folder, part, descriptor)
        if held is not None:
            yield Partial(folder, name, part, descriptor, held.st_size)


def _hold(folder: int, part: str, descriptor: int) -> os.stat_result | None:
    """Lock an open partial and see that its name is still its own; None, and closed, if not."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = os.fstat(descriptor)
        named = os.stat(part, dir_fd=folder, follow_symlinks=False)
    except OSError:
        os.close(descriptor)
        return None
    is_ours = held.st_uid == os.geteuid() and stat.S_ISREG(held.st_mode) and held.st_nlink == 1
    if is_ours and os.path.samestat(held, named):
        return held
    os.close(descriptor)
    return None
