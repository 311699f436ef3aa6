"""Owns where one repository lies in the Hugging Face cache, and reading that: refs and snapshots.

    <cache>/models--<ns>--<repo>/refs/<revision>          40 hex digits: a commit
    <cache>/models--<ns>--<repo>/snapshots/<commit>/...   links into blobs/
    <cache>/models--<ns>--<repo>/blobs/<name>             the bytes

It must not write (`hub_install.py`), download, or know what a manifest says. What lies there is
not trusted: a ref is a regular file reached without a link, of exactly a commit's digits.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from packages.layer_package.cache_roots import hub_cache_root
from packages.layer_package.errors import CacheError, RefError
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.references import PackageRef

_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_COMMIT_DIGITS = 40
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def is_commit(text: object) -> bool:
    """Whether it is 40 lowercase hex digits: a revision that cannot move."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class HubRepository:
    """One model repository in the cache folder `cache` (absolute); nothing need exist."""

    cache: Path
    namespace: str
    repo: str

    @classmethod
    def of(cls, ref: PackageRef, cache: Path | None = None) -> "HubRepository":
        """The place of a hub reference; RefError `not_a_package_ref` for any other."""
        if ref.kind != "hf" or not ref.namespace or not ref.repo:
            raise RefError("not_a_package_ref", f"{ref.canonical} names no repository of a hub")
        return cls(hub_cache_root(cache), ref.namespace, ref.repo)

    @property
    def repo_id(self) -> str:
        """`namespace/repo`."""
        return f"{self.namespace}/{self.repo}"

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"models--{self.namespace}--{self.repo}"

    @property
    def folder(self) -> Path:
        """Its folder."""
        return self.cache / self.name

    def snapshot(self, commit: str) -> Path:
        """The folder of one commit's files."""
        return self.folder / "snapshots" / commit

    def locate(self, revision: str) -> Path | None:
        """The snapshot of a revision that has a manifest, None when there is none.

        First the snapshot of that very name, then the one that the ref names. CacheError
        `corrupt_cache_ref` when the ref holds anything but a commit.
        """
        # A revision with a slash would name a folder inside another snapshot.
        if "/" not in revision and self._has_manifest(revision):
            return self.snapshot(revision)
        if is_commit(revision):
            return None
        commit = self.commit_of(revision)
        if commit is None or not self._has_manifest(commit):
            return None
        return self.snapshot(commit)

    def commit_of(self, revision: str) -> str | None:
        """The commit in `refs/<revision>`; None when there is no such ref. As `locate` raises."""
        content = self._read_ref(revision)
        if content is None:
            return None
        text = content.decode("ascii", "replace")
        if not is_commit(text):
            raise self._corrupt(revision, f"it holds {text[:_COMMIT_DIGITS]!a}, not a commit")
        return text

    def _has_manifest(self, name: str) -> bool:
        # Whether it may be opened is asked when it is: here only whether anything is there.
        try:
            os.stat(self.snapshot(name) / MANIFEST_NAME)
        except (OSError, ValueError):
            return False
        return True

    def _read_ref(self, revision: str) -> bytes | None:
        try:
            folder = open_folder(self.folder, ["refs", *revision.split("/")[:-1]])
            try:
                descriptor = os.open(revision.rsplit("/")[-1], _FILE, dir_fd=folder)
            finally:
                os.close(folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise self._corrupt(revision, f"it cannot be opened: {e.strerror}") from e
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise self._corrupt(revision, "it is not a regular file")
            return os.read(descriptor, _COMMIT_DIGITS + 1)
        except OSError as e:
            raise self._corrupt(revision, f"it cannot be read: {e.strerror}") from e
        finally:
            os.close(descriptor)

    def _corrupt(self, revision: str, why: str) -> CacheError:
        return CacheError(
            "corrupt_cache_ref",
            f"the cache's ref {revision!a} of {self.repo_id} is unusable: {why}",
            hint="remove that ref from the cache, or name a commit",
        )


def open_folder(root: Path, names: list[str], *, create: bool = False) -> int:
    """A descriptor of the folder `names` below `root`, no link followed below `root`. OSError."""
    descriptor = os.open(root, _FOLDER)
    for name in names:
        try:
            if create:
                _make(name, descriptor)
            inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _make(name: str, folder: int) -> None:
    try:
        os.mkdir(name, 0o777, dir_fd=folder)
    except FileExistsError:
        # whether it is a folder is seen when it is opened
        return
