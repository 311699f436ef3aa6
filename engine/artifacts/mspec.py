"""Owns the view of an .mspec file: identity, objects as slices of the mapped file, verification.

Knows nothing of any architecture. `open_mspec` checks the header and directory before anything is
used (`mspec_directory.py`; the format is in `mspec_format.py`) and reads nothing else, so opening
costs the same for any length. The data is judged when it is asked for, by the file's policy. A file
that shrinks while open is out of scope (`mapped_file.py`).
"""

import functools
import hashlib
import os
import threading
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.artifacts.closing import Closing
from engine.artifacts.mapped_file import MappedFile, PathLike, path_bytes, printable
from engine.artifacts.mspec_directory import read_directory
from engine.artifacts.mspec_format import JOURNAL_SUFFIX, Identity, Kind, MspecObject, aligned
from engine.artifacts.mspec_tensor import MspecTensor
from engine.errors import InvalidArgument, ModelError

# hashlib lets other threads run during an update, one piece at a time
_HASH_BYTES = 4 << 20


class Verify(StrEnum):
    """When the digest of an object is compared: at every use, at its first one, or not at all."""

    ALWAYS = "always"
    FIRST_USE = "first_use"
    NEVER = "never"


class Verification(NamedTuple):
    """How an object was found to be sound: how often, why last ("asked" is `check`), by whom."""

    n_checks: int
    reason: str
    thread: str


class MspecFile(Closing):
    """An open file. `path`, `shown` (for people), `n_bytes`, `identity`, `policy`, `file_id`, and
    `objects` by name in file order. Usable from several threads; a context manager."""

    def __init__(self, file: MappedFile, policy: Verify) -> None:
        """Made by `open_mspec`."""
        directory = read_directory(file.view, file.shown)
        self._file = file
        self.path, self.shown, self.n_bytes = file.path, file.shown, file.n_bytes
        self.file_id = file.file_id
        self.identity: Identity = directory.identity
        self.objects: Mapping[str, MspecObject] = MappingProxyType(directory.objects)
        self.policy = policy
        self._verified: dict[str, Verification] = {}
        self._record_lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def tensors(self) -> tuple[MspecTensor, ...]:
        """Every weight, in file order."""
        return tuple(self._tensor(o) for o in self.objects.values() if o.kind == Kind.TENSOR)

    def tensor(self, name: str) -> MspecTensor:
        """The weight of that name; ModelError when there is none."""
        return self._tensor(self._entry(name, Kind.TENSOR))

    def text(self, name: str) -> str:
        """The string of a text or json object; ModelError for none of that name, or no UTF-8."""
        raw = self._sound(self._entry(name, Kind.TEXT, Kind.JSON)).tobytes()
        try:
            return raw.decode()
        except UnicodeDecodeError as e:
            raise self._bad(name, f"is not valid UTF-8 at byte {e.start}") from e

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """uint8 [length] of any object: a read-only view that keeps the file mapped."""
        return self._sound(self._entry(name, *Kind))

    def check(self, name: str) -> None:
        """Compare the digest of an object and the zeros after it now, whatever the policy.

        ModelError when they are not right.
        """
        self._compare(self._entry(name, *Kind), "asked")

    @property
    def verifications(self) -> dict[str, Verification]:
        """Objects found sound so far through this file, by name; the others are missing."""
        return dict(self._verified)

    def close(self) -> None:
        """Let go of the file. Arrays handed out stay valid and keep it mapped."""
        self._file.close()

    def _tensor(self, entry: MspecObject) -> MspecTensor:
        return MspecTensor(entry, self.shown, functools.partial(self._sound, entry))

    def _entry(self, name: str, *kinds: Kind) -> MspecObject:
        found = self.objects.get(name)
        if found is None or found.kind not in kinds:
            wanted = "object" if len(kinds) == len(Kind) else " or ".join(kinds)
            have = "" if found is None else f", only a {found.kind}"
            n_objects = len(self.objects)
            raise ModelError(
                f"{self.shown}: no {wanted} {printable(name, 80)} among {n_objects} objects{have}"
            )
        return found

    def _bad(self, name: str, what: str) -> ModelError:
        return ModelError(f"{self.shown}: object {printable(name, 80)} {what}")

    def _sound(self, entry: MspecObject) -> npt.NDArray[np.uint8]:
        """The bytes of an object, after what the policy asks for."""
        if self.policy == Verify.ALWAYS:
            self._compare(entry, Verify.ALWAYS)
        elif self.policy == Verify.FIRST_USE and entry.name not in self._verified:
            # Its own lock for each object: two threads hash two objects side by side.
            with self._locks.setdefault(entry.name, threading.Lock()):
                if entry.name not in self._verified:
                    self._compare(entry, Verify.FIRST_USE)
        return np.frombuffer(self._file.view, np.uint8, entry.length, entry.offset)

    def _compare(self, entry: MspecObject, reason: str) -> None:
        view, end = self._file.view, entry.offset + entry.length
        digest = hashlib.sha256()
        for start in range(entry.offset, end, _HASH_BYTES):
            digest.update(view[start : min(start + _HASH_BYTES, end)])
        if digest.hexdigest() != entry.sha256:
            raise self._bad(
                entry.name, f"is damaged: digest {digest.hexdigest()}, not {entry.sha256}"
            )
        if any(view[end : aligned(end)]):
            raise self._bad(entry.name, "has bytes other than zero behind it")
        thread = threading.current_thread().name
        with self._record_lock:
            before = self._verified.get(entry.name)
            n_checks = before.n_checks + 1 if before else 1
            self._verified[entry.name] = Verification(n_checks, reason, thread)


def open_mspec(path: PathLike, verify: Verify = Verify.FIRST_USE) -> MspecFile:
    """Map a file and check its header and directory.

    ModelError, at once and with the path, when it is missing, unreadable, not a sound .mspec file,
    or a conversion under way (its journal lies beside it). No claim of the file costs more than a
    second or 64 MiB.
    """
    if verify not in tuple(Verify):
        raise InvalidArgument(f"verify is {verify!r}, it is one of {', '.join(Verify)}")
    file = MappedFile(path)
    # In its last moments a writer's file is whole, but not yet where it belongs.
    if os.path.lexists(path_bytes(path) + JOURNAL_SUFFIX):
        raise ModelError(f"cannot open {file.shown}: a conversion is still writing it")
    return MspecFile(file, verify)
