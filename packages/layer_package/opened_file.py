"""Owns a file of a package held open: found without leaving its folder, told apart from any other.

It must not know manifests, nor what the file holds. Folders are entered one by one through
descriptors that refuse symbolic links, so that nobody can swap a folder between check and use. Only
regular files are opened: a FIFO or device is looked at, never opened, so nothing waits. Descriptors
0, 1 and 2 are the host's, also where it has closed them. Failures are ArtifactError; its messages
name the path as the manifest writes it, never one of this machine.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from engine.artifacts.mapped_file import PathLike, path_bytes
from packages.layer_package.errors import ArtifactError

# A folder is only passed through; where the system has it, O_PATH needs no permission to list it.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_SPECIAL = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


class Identity(NamedTuple):
    """What tells a file's content apart from another's, as far as the system knows."""

    device: int
    inode: int
    n_bytes: int
    mtime_ns: int
    ctime_ns: int


class OpenedFile:
    """A regular file open for reading: `fd`, its `identity` and `n_bytes` when it was opened.

    A context manager; `fd` is -1 once closed.
    """

    def __init__(self, fd: int, reopen: Callable[[], "OpenedFile"]) -> None:
        """Owns `fd` from now on; `reopen` finds the file by its path again."""
        self.fd = fd
        found = os.fstat(fd)
        self.identity = Identity(
            found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        )
        self._reopen = reopen

    @property
    def n_bytes(self) -> int:
        """Length of the file when it was opened."""
        return self.identity.n_bytes

    def still_same(self) -> bool:
        """Whether its path still leads to this file, and no byte or attribute was touched since.

        Looks the path up again, as a loader that takes paths will. False once closed. A change
        within the resolution of the file system's clock that keeps the length is not seen.
        """
        if self.fd < 0:
            return False
        try:
            with self._reopen() as again:
                # by that path, so also an earlier file that was renamed away and back is seen
                return again.identity == self.identity
        except ArtifactError:
            return False

    def close(self) -> None:
        """Let go of the descriptor; a second time does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> "OpenedFile":
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def open_below(root: Path, path: str, repository: Path | None = None) -> OpenedFile:
    """The regular file `path` (relative, checked) below `root`; see `paths.open_artifact`."""
    try:
        # absolute, for `still_same` looks again, perhaps from another working folder
        base = _absolute(root)
        cache = None if repository is None else _absolute(repository)
        fd = _open_named(base, path, cache)
    except OSError as e:
        raise _refusal(e, path) from e
    below = None if cache is None else Path(os.fsdecode(cache))
    return OpenedFile(fd, partial(open_below, Path(os.fsdecode(base)), path, below))


def open_file(path: PathLike, shown: str) -> OpenedFile:
    """A regular file that the caller names himself, outside any package; links are followed.

    Errors are those of `open_artifact`, with `shown` as the artifact.
    """
    try:
        raw = _absolute(path)
        _refuse_special(os.stat(raw).st_mode, shown)
        fd = _checked(os.open(raw, _FILE), shown)
    except OSError as e:
        raise _refusal(e, shown) from e
    return OpenedFile(fd, partial(open_file, raw, shown))


def _absolute(path: PathLike) -> bytes:
    """Not `abspath`, which takes 'link/..' for nothing."""
    raw = path_bytes(path)
    return raw if raw.startswith(b"/") else os.path.join(os.getcwdb(), raw)


def _open_named(base: bytes, path: str, repository: bytes | None) -> int:
    names = path.encode("utf-8").split(b"/")
    fd = _descend(base, names, path, links=repository is not None)
    if fd is None and repository is not None:
        below = _inside(os.path.join(base, *names), repository, path)
        fd = _descend(*below, path, links=False)
    if fd is None:
        raise _escape(path)
    return fd


def _descend(base: bytes, names: list[bytes], artifact: str, *, links: bool) -> int | None:
    """A descriptor of the file; None where `links` and its last name is a symbolic link."""
    folder = os.open(base, _FOLDER)
    try:
        for name in names[:-1]:
            inner = _enter(folder, name, artifact)
            os.close(folder)
            folder = inner
        mode = os.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            if not links:
                raise _escape(artifact)
            # Asked here for its refusals: nothing there, or more links than the system follows.
            os.stat(names[-1], dir_fd=folder)
            return None
        _refuse_special(mode, artifact)
        return _checked(os.open(names[-1], _FILE | os.O_NOFOLLOW, dir_fd=folder), artifact)
    finally:
        os.close(folder)


def _enter(folder: int, name: bytes, artifact: str) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError:
        # what Linux says of a link here, too
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise _escape(artifact) from None
        raise


def _inside(link: bytes, repository: bytes, artifact: str) -> tuple[bytes, list[bytes]]:
    """Where a snapshot's link leads, as the repository and names below it without any link.

    It is walked again without following links: a link that appears meanwhile is refused.
    """
    base = os.path.realpath(repository)
    target = os.path.realpath(link)
    if not target.startswith(base + b"/"):
        raise ArtifactError(
            "artifact_escapes_root",
            "is a symbolic link that leaves its repository's cache folder", artifact=artifact,
        )  # fmt: skip
    return base, target[len(base) + 1 :].split(b"/")


def _checked(fd: int, artifact: str) -> int:
    """A descriptor above the standard ones of what is really open, if that is a regular file."""
    try:
        _refuse_special(os.fstat(fd).st_mode, artifact)
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _refuse_special(mode: int, artifact: str) -> None:
    if not stat.S_ISREG(mode):
        what = _SPECIAL.get(stat.S_IFMT(mode), "a device")
        raise ArtifactError(
            "artifact_not_file", f"is {what}, not a regular file", artifact=artifact
        )


def _escape(artifact: str) -> ArtifactError:
    return ArtifactError(
        "artifact_escapes_root", "is reached through a symbolic link", artifact=artifact,
        hint="in a local package every folder and file is itself; copy what the link names",
    )  # fmt: skip


def _refusal(error: OSError, artifact: str) -> ArtifactError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ArtifactError("missing_artifact", "the file is not there", artifact=artifact)
    if error.errno == errno.ELOOP:
        return _escape(artifact)
    if error.errno in (errno.ENXIO, errno.ENODEV):
        return ArtifactError("artifact_not_file", "is not a regular file", artifact=artifact)
    return ArtifactError(
        "artifact_unreadable", f"cannot be opened: {error.strerror}", artifact=artifact
    )
