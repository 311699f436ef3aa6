"""Owns the folder that a package is written into: temporaries, rename, room, one writer at a time.

It must not know what is written. A file appears whole, under its name, with its bytes on the disk,
or not at all. Temporaries are `.writing-<16 hex digits>.gguf` beside their target, so that a tool
run on one knows its kind; those of a writer that was killed are removed by the next one. The
folder itself is locked (`flock` on it leaves no file behind); where a file system has no such lock
two writers are the caller's to avoid. Folders inside are entered without following links.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from packages.layer_package.errors import WriterError
from packages.layer_package.model import MANIFEST_NAME

_TEMPORARY = re.compile(r"\.writing-[0-9a-f]{16}\.gguf")
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDERS = ("", "shared", "layers", "projectors")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Written(NamedTuple):
    """Bytes of a file and their SHA-256, 64 hex digits."""

    n_bytes: int
    sha256: str


Transform = Callable[[Path], Written]


class PackageOutput:
    """The folder, held open and locked. A context manager."""

    def __init__(self, folder: Path) -> None:
        """Make it where it is missing, lock it, remove what a killed writer left.

        WriterError `output_busy`, `write_failed`.
        """
        # what a hook is told must hold wherever it runs
        self.root = folder.absolute()
        self._is_new = not os.path.lexists(self.root)
        with _explained("."):
            os.makedirs(self.root, exist_ok=True)
            self._fd = os.open(self.root, _FOLDER)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, self._fd)
            self._lock()
            for name in _FOLDERS:
                self._sweep(name)
            stack.pop_all()

    def __enter__(self) -> "PackageOutput":
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Let go of the folder; one that was made here and stays empty goes."""
        os.close(self._fd)
        if error is not None and self._is_new:
            for name in (*reversed(_FOLDERS),):
                with contextlib.suppress(OSError):
                    os.rmdir(self.root / name)

    def free_bytes(self) -> int:
        """Bytes that this user may still write there."""
        found = os.fstatvfs(self._fd)
        return found.f_bavail * found.f_frsize

    def has_manifest(self) -> bool:
        """Whether anything has the manifest's name."""
        with contextlib.suppress(FileNotFoundError):
            os.stat(MANIFEST_NAME, dir_fd=self._fd, follow_symlinks=False)
            return True
        return False

    def remove_manifest(self) -> None:
        """The package is not whole from now on. WriterError `write_failed`."""
        with _explained(MANIFEST_NAME), contextlib.suppress(FileNotFoundError):
            os.unlink(MANIFEST_NAME, dir_fd=self._fd)
            os.fsync(self._fd)

    def n_bytes_of(self, path: str) -> int:
        """Bytes of the regular file of that name; 0 for anything else."""
        with contextlib.suppress(OSError), self._folder_of(path, create=False) as folder:
            found = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
            return found.st_size if stat.S_ISREG(found.st_mode) else 0
        return 0

    def write(
        self, path: str, content: Iterable[bytes | memoryview], transform: Transform | None = None
    ) -> Written:
        """Write a file below the folder; its digest is taken on the way.

        `transform` may change the temporary file, and says what it has become. WriterError
        `insufficient_space` or `write_failed`; then nothing is left, and a file that had the name
        is untouched.
        """
        with _explained(path), self._folder_of(path, create=True) as folder:
            temporary = f".writing-{secrets.token_hex(8)}.gguf"
            try:
                written = _fill(temporary, folder, content)
                if transform is not None:
                    written = transform(self.root / os.path.dirname(path) / temporary)
                _sync(temporary, folder)
                name = os.path.basename(path)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
        return written

    @contextlib.contextmanager
    def _folder_of(self, path: str, *, create: bool) -> Iterator[int]:
        names = path.split("/")[:-1]
        folder = os.open(".", _FOLDER, dir_fd=self._fd)
        try:
            for name in names:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=folder)
                inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise WriterError("output_busy", "another writer is at work in this folder") from e
        except OSError:
            # no such lock on this file system
            return

    def _sweep(self, name: str) -> None:
        with contextlib.suppress(OSError), self._folder_of(f"{name}/x".lstrip("/"),
                                                           create=False) as folder:  # fmt: skip
            for entry in os.listdir(folder):
                if _TEMPORARY.fullmatch(entry):
                    os.unlink(entry, dir_fd=folder)


def _fill(temporary: str, folder: int, content: Iterable[bytes | memoryview]) -> Written:
    digest, n_bytes = hashlib.sha256(), 0
    fd = os.open(temporary, _CREATE, 0o666, dir_fd=folder)
    try:
        for piece in content:
            digest.update(piece)
            _write_all(fd, piece)
            n_bytes += len(piece)
    finally:
        os.close(fd)
    return Written(n_bytes, digest.hexdigest())


def _write_all(fd: int, piece: bytes | memoryview) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]


def _sync(name: str, folder: int) -> None:
    """The file by name: a transform may have put another one there."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Failures of the system as WriterError."""
    try:
        yield
    except OSError as e:
        kind = "insufficient_space" if e.errno in _FULL else "write_failed"
        raise WriterError(kind, f"cannot be written: {e.strerror}", artifact=path) from e
