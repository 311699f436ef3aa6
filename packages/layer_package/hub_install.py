"""Owns writing into one repository of the Hugging Face cache: whole files, links, refs, quarantine.

It must not know what a file should be nor where it comes from. The caller holds `writing`, so
there is one writer; readers need no lock, because a blob, a link and a ref each appear by a rename.
A file is first in `.incoming/` of the repository, a folder that whoever writes next empties: a
killed writer leaves nothing that anybody takes for a file of the package.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from packages.layer_package.digests import IsCancelled
from packages.layer_package.errors import CacheError, Cancelled
from packages.layer_package.file_lock import held
from packages.layer_package.hub_cache import HubRepository, open_folder

# Long, because the other process may be downloading a whole model.
LOCK_SECONDS = 6 * 3600.0
LOCK_NAME = "layer-package.lock"
INCOMING, QUARANTINE = ".incoming", ".quarantine"


@contextlib.contextmanager
def writing(
    repository: HubRepository,
    *,
    lock_seconds: float = LOCK_SECONDS,
    cancelled: IsCancelled | None = None,
) -> Iterator[Path]:
    """Be the one writer of the repository; gives an empty private folder for files to come.

    CacheError `cache_lock_timeout`, `insufficient_space`, `cache_not_writable`; Cancelled while
    waiting. OSErrors of the block become CacheErrors too; the folder is gone after it.
    """

    def ask() -> None:
        if cancelled is not None and cancelled():
            raise Cancelled(f"waiting for another download of {repository.repo_id}")

    locks = repository.cache / ".locks" / repository.name
    try:
        locks.mkdir(parents=True, exist_ok=True)
        repository.folder.mkdir(exist_ok=True)
        with held(locks / LOCK_NAME, seconds=lock_seconds, ask=ask):
            incoming = repository.folder / INCOMING
            _remove(incoming)
            try:
                incoming.mkdir(mode=0o700)
                yield incoming
            finally:
                _remove(incoming)
    except TimeoutError as e:
        raise CacheError(
            "cache_lock_timeout",
            f"another download of {repository.repo_id} has gone on for {lock_seconds:g} s",
        ) from e
    except OSError as e:
        raise not_written(repository, e) from e


def not_written(repository: HubRepository, error: OSError) -> CacheError:
    """What a refusal of the system to write means: no space, or no permission."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return CacheError(
        "insufficient_space" if is_full else "cache_not_writable",
        f"{repository.repo_id} cannot be written into the cache: {error.strerror}",
        hint="free space, or name another cache with HF_HUB_CACHE" if is_full else None,
    )


def install(
    repository: HubRepository, commit: str, path: str, incoming: Path, sha256: str
) -> None:
    """Give the checked file `incoming` to the cache as `path` of `commit`. OSError.

    Its blob is named by its digest, as the hub names large files.
    """
    with open(incoming, "rb") as file:
        os.fsync(file.fileno())
    with _folder(repository, ["blobs"]) as blobs:
        os.replace(incoming, sha256, dst_dir_fd=blobs)
        os.fsync(blobs)
    link(repository, commit, path, sha256)


def link(repository: HubRepository, commit: str, path: str, blob: str) -> None:
    """Make `path` of `commit` a link to the blob, in place of whatever was there. OSError."""
    *folders, name = path.split("/")
    with _folder(repository, ["snapshots", commit, *folders]) as folder:
        temporary = f".{secrets.token_hex(8)}.link"
        os.symlink("../" * (2 + len(folders)) + f"blobs/{blob}", temporary, dir_fd=folder)
        try:
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise
        os.fsync(folder)


def write_ref(repository: HubRepository, revision: str, commit: str) -> None:
    """Let `revision` name `commit`. OSError."""
    *folders, name = revision.split("/")
    with _folder(repository, ["refs", *folders]) as folder:
        temporary = f".{secrets.token_hex(8)}.ref"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=folder), "wb") as out:
                out.write(commit.encode())
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)


def quarantine(repository: HubRepository, commit: str, path: str) -> None:
    """Move what a snapshot has at `path`, if anything, to the quarantine. OSError.

    Of a link the blob is moved and the link removed; a blob that is no plain file of this
    repository stays where it is.
    """
    *folders, name = path.split("/")
    try:
        parent = open_folder(repository.folder, ["snapshots", commit, *folders])
    except FileNotFoundError:
        return
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(name, dir_fd=parent)
            os.unlink(name, dir_fd=parent)
            if target == "../" * (2 + len(folders)) + "blobs/" + os.path.basename(target):
                quarantine_file(
                    repository, commit, path, repository.folder / "blobs" / os.path.basename(target)
                )
        elif stat.S_ISREG(found.st_mode):
            target = _quarantined(repository, commit, path)
            os.replace(name, target, src_dir_fd=parent)
    except FileNotFoundError:
        return
    finally:
        os.close(parent)


def quarantine_file(repository: HubRepository, commit: str, path: str, file: Path) -> None:
    """Move a regular file to the quarantine as the bad content of `path`. OSError.

    One bad file is kept for each path of a commit, so that retries do not fill the disk.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISREG(os.lstat(file).st_mode):
            os.replace(file, _quarantined(repository, commit, path))


def _quarantined(repository: HubRepository, commit: str, path: str) -> str:
    folder = repository.cache / QUARANTINE / repository.name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # By digest: the path may be longer than a name can be.
    return str(folder / f"{commit}-{hashlib.sha256(path.encode()).hexdigest()[:16]}")


@contextlib.contextmanager
def _folder(repository: HubRepository, names: list[str]) -> Iterator[int]:
    descriptor = open_folder(repository.folder, names, create=True)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a folder of ours with all in it, or whatever else has its name."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(folder).st_mode):
            shutil.rmtree(folder)
        else:
            os.unlink(folder)
