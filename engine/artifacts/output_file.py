"""Owns writing a file so that it appears whole or not at all.

Knows nothing of formats. The bytes go to a temporary file in the target's folder, which is synced
and then renamed over the target; on any failure it is removed. Failures of the system are
IoFailure with the path and the system's reason.
"""

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO

from engine.artifacts.mapped_file import FileId, PathLike, path_bytes, printable
from engine.errors import InvalidArgument, IoFailure

_BUFFER_BYTES = 1 << 20


@contextlib.contextmanager
def new_file(path: PathLike) -> Iterator[BinaryIO]:
    """A buffered writer for the file that will be at `path` once the block ends without error."""
    target = path_bytes(path)
    # Not made from the target's name: that may already be as long as a name can be.
    temporary = os.path.join(os.path.dirname(target), b".partial-" + secrets.token_hex(8).encode())
    try:
        refuse_special(target)
        with _create(temporary) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, target)
    except OSError as e:
        raise IoFailure(f"cannot write {printable(target)}: {e.strerror}") from e
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    sync_folder(os.path.dirname(target) or b".")


def refuse_input_as_output(path: PathLike, inputs: frozenset[FileId]) -> None:
    """InvalidArgument when `path` leads to one of the input files, by whatever name or link."""
    target = path_bytes(path)
    try:
        found = os.stat(target)
    except OSError:
        # nothing there to lose; the writer reports what is wrong with the path
        return
    if FileId(found.st_dev, found.st_ino) in inputs:
        raise InvalidArgument(
            f"output {printable(target)} is one of the input files and would destroy it"
        )


def refuse_special(target: bytes) -> None:
    """A rename would replace a device or FIFO by a plain file."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(target).st_mode):
            raise IoFailure(f"cannot write {printable(target)}: it is not a regular file")


def _create(temporary: bytes) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    first = os.open(temporary, flags, 0o666)
    try:
        # Descriptors 0, 1 and 2 are the host's, also where it has closed them.
        descriptor = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(first)
    return os.fdopen(descriptor, "wb", buffering=_BUFFER_BYTES)


def sync_folder(folder: bytes) -> None:
    """Make the new name last; the file is whole either way, so a refusal is not a failure."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
