"""Owns the journal beside an unfinished .mspec file: which objects are done, and for which run.

Text lines of two hex words: a record, and the SHA-256 of the checksum of the line before it and
this record, so that a line can neither be torn, nor changed, nor come from another run unnoticed.
The first record is the run (title, model id, recipe, digest of the recipe, resume key); the others
are directory records (`mspec_directory.py`). Who holds the journal's lock is the one writer. Errors
of the system come out as OSError; the writer names them.
"""

import fcntl
import hashlib
import io
import itertools
import os

from engine.artifacts.mapped_file import printable
from engine.artifacts.mspec_directory import RecordReader, pack_object
from engine.artifacts.mspec_format import (
    HEADER_BYTES,
    MAX_OBJECTS,
    MspecObject,
    Origin,
    aligned,
    check_text,
    packed_text,
)
from engine.artifacts.mspec_part import open_own, write_all
from engine.errors import IoFailure, ModelError

MAX_RESUME_KEY_BYTES = 4096
_TITLE = b"mspec-journal-1\n"
_MAX_BYTES = 64 << 20


class Journal:
    """The open, locked journal of one run. `objects` are those it has, by name, in order."""

    def __init__(self, path: bytes, origin: Origin, resume_key: str) -> None:
        """Take the lock and read what there is.

        Lines of another run do not count, nor does anything from the first unsound line on.
        IoFailure while another writer holds the lock.
        """
        origin.check()
        check_text("resume_key", resume_key, MAX_RESUME_KEY_BYTES)
        self.path = path
        self.objects: dict[str, MspecObject] = {}
        self._run = _run_record(origin, resume_key)
        self._file = _locked(path)
        # Length and last checksum of nothing, of the run's line, and of each object's after it.
        self._ends = [(0, b"")]
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def append(self, entry: MspecObject) -> None:
        """Note an object whose data is in the file."""
        self._append(pack_object(entry))
        self.objects[entry.name] = entry

    @property
    def last(self) -> MspecObject | None:
        """The object noted last."""
        return next(reversed(self.objects.values()), None)

    def keep(self, n_objects: int) -> None:
        """Forget all objects but the first ones, and cut off what is no line of this run."""
        self.objects = dict(itertools.islice(self.objects.items(), n_objects))
        del self._ends[n_objects + 2 :]
        self._file.truncate(self._ends[-1][0])

    def remove(self) -> None:
        """Delete the journal; its lock goes with it."""
        os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Let go of the lock; the journal stays."""
        self._file.close()

    def _append(self, record: bytes) -> None:
        at, before = self._ends[-1]
        line, checksum = _line(before, record)
        write_all(self._file.fileno(), line, at)
        self._ends.append((at + len(line), checksum))

    def _read(self) -> None:
        descriptor = self._file.fileno()
        data = os.pread(descriptor, min(os.fstat(descriptor).st_size, _MAX_BYTES), 0)
        lines = data.splitlines(keepends=True)[: MAX_OBJECTS + 1]
        if lines and self._takes(lines[0], self._run):
            self._read_objects(lines[1:])
        else:
            self._append(self._run)

    def _read_objects(self, lines: list[bytes]) -> None:
        end = HEADER_BYTES
        for line in lines:
            record = _record(line)
            try:
                entry = RecordReader(memoryview(record), "journal").object(aligned(end))
            except ModelError:
                return
            if entry.name in self.objects or not self._takes(line, pack_object(entry)):
                return
            self.objects[entry.name] = entry
            end = entry.offset + entry.length

    def _takes(self, line: bytes, record: bytes) -> bool:
        """Whether the line is the one that belongs here for the record; if so it is counted."""
        at, before = self._ends[-1]
        expected, checksum = _line(before, record)
        if line != expected:
            return False
        self._ends.append((at + len(line), checksum))
        return True


def _run_record(origin: Origin, resume_key: str) -> bytes:
    texts = (origin.model_id, origin.recipe, origin.recipe_sha256, resume_key)
    return _TITLE + b"".join(map(packed_text, texts))


def _line(before: bytes, record: bytes) -> tuple[bytes, bytes]:
    checksum = hashlib.sha256(before + record).digest()
    return f"{record.hex()} {checksum.hex()}\n".encode(), checksum


def _record(line: bytes) -> bytes:
    """The record of a line; empty when it has none."""
    try:
        return bytes.fromhex(line.partition(b" ")[0].decode("ascii"))
    except ValueError:
        return b""


def _locked(path: bytes) -> io.FileIO:
    while True:
        file = io.FileIO(open_own(path), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A writer that finished in between has deleted the file that was locked.
            if os.path.lexists(path) and os.path.samestat(os.fstat(file.fileno()), os.lstat(path)):
                return file
        except BlockingIOError as e:
            file.close()
            raise IoFailure(f"{printable(path)} is locked: another writer is at work") from e
        except BaseException:
            file.close()
            raise
        file.close()
