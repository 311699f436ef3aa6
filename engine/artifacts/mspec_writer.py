"""Owns writing an .mspec file: streaming, in bounded memory, resumable, whole or not at all.

The format is in `mspec_format.py`. Data goes to `<path>.part`, and `<path>.part.journal` notes each
finished object with its digest (`mspec_journal.py`). After a kill the next run with the same
origin and resume key reads back what the journal lists, keeps the objects up to the first whose
bytes are not as noted, and goes on; nothing had to be synced for that. `finish` appends the
directory, syncs, writes the header, syncs, renames, and deletes the journal: until the rename no
file opens, since the header is zeros and, at last, the journal still lies there. Same calls give
the same bytes, whether interrupted or not.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.artifacts.mapped_file import PathLike, path_bytes, printable
from engine.artifacts.mspec_directory import pack_header, pack_identity, pack_object
from engine.artifacts.mspec_format import (
    HEADER_BYTES,
    JOURNAL_SUFFIX,
    MAX_OBJECTS,
    DType,
    Identity,
    Kind,
    Layout,
    MspecObject,
    Origin,
    aligned,
    check_text,
    object_bytes,
    weights_id,
)
from engine.artifacts.mspec_journal import Journal, open_own
from engine.artifacts.output_file import _refuse_special, _sync_folder
from engine.errors import InvalidArgument, IoFailure

Chunk = bytes | bytearray | memoryview | npt.NDArray[Any]

PART_SUFFIX = b".part"
_READ_BYTES = 4 << 20


class MspecWriter:
    """Writes one file; a context manager. Leaving it without `finish` keeps what is done, for the
    next run. Not for several threads at once."""

    def __init__(self, path: PathLike, origin: Origin, resume_key: str) -> None:
        """Begin, or go on where a run with this origin and resume key ended.

        `resume_key` stands for the source, in at most 4,096 bytes. What a run of another origin or
        key left is discarded. InvalidArgument for texts that no file holds; IoFailure when the
        system refuses, and while another writer works on the same path.
        """
        self._target = path_bytes(path)
        self._part = self._target + PART_SUFFIX
        self._origin = origin
        self._descriptor = -1
        with self._naming_failures():
            _refuse_special(self._target)
            self._journal = Journal(self._part + JOURNAL_SUFFIX, origin, resume_key)
            try:
                self._descriptor = open_own(self._part)
                self._keep_what_is_sound()
            except BaseException:
                self.close()
                raise
        self._done = {entry.name: None for entry in self._journal.objects}

    @property
    def done(self) -> AbstractSet[str]:
        """Names of the objects that are written, by this run or by the ones it goes on from.

        The others must be written in the order that an uninterrupted run has.
        """
        return self._done.keys()

    @property
    def n_bytes(self) -> int:
        """Data written so far, by this run or before."""
        return sum(entry.length for entry in self._journal.objects)

    def write(
        self,
        name: str,
        kind: str,
        dtype: str,
        shape: Sequence[int],
        layout: str,
        chunks: Iterable[Chunk],
    ) -> None:
        """Append one object; its chunks are asked for once, in order.

        InvalidArgument for a name that is done, a declaration that no file holds, and chunks that
        are not just the bytes of the declaration; IoFailure when the system refuses. Whatever is
        raised, by `chunks` too, the object is undone and the writer can go on.
        """
        self._require_open()
        check_text("object name", name)
        if name in self._done:
            raise InvalidArgument(f"object {printable(name, 80)} is written already")
        if len(self._done) == MAX_OBJECTS:
            raise InvalidArgument(f"more than {MAX_OBJECTS} objects")
        try:
            length = object_bytes(kind, dtype, shape, layout)
        except InvalidArgument as e:
            raise InvalidArgument(f"object {printable(name, 80)}: {e}") from e
        try:
            offset = aligned(self._end())
            sha256 = self._write_data(name, offset, length, chunks)
            entry = MspecObject(
                name, Kind(kind), DType(dtype), tuple(shape), Layout(layout), offset, length, sha256
            )
            with self._naming_failures():
                self._journal.append(entry)
        except BaseException:
            self._forget_unfinished()
            raise
        self._done[name] = None

    def write_text(self, name: str, text: str, kind: Kind = Kind.TEXT) -> None:
        """Append a text or json object."""
        try:
            raw = text.encode()
        except UnicodeEncodeError as e:
            raise InvalidArgument(f"object {printable(name, 80)} is not text: {e.reason}") from e
        self.write(name, kind, DType.U8, (len(raw),), Layout.ROW_MAJOR, (raw,))

    def finish(self) -> str:
        """Put the file in its place and return its weights_id.

        IoFailure when the system refuses; what is done stays for another run then, and a file that
        was there before is untouched.
        """
        self._require_open()
        objects = self._journal.objects
        identity = Identity(
            self._origin.model_id,
            weights_id(objects),
            self._origin.recipe,
            self._origin.recipe_sha256,
        )
        directory = pack_identity(identity) + b"".join(map(pack_object, objects))
        offset = aligned(self._end())
        header = pack_header(directory, offset, len(objects))
        try:
            with self._naming_failures():
                self._seal(directory, offset, header)
        except BaseException:
            self._forget_unfinished()
            raise
        self._journal.remove()
        _sync_folder(os.path.dirname(self._target) or b".")
        self.close()
        return identity.weights_id

    def abort(self) -> None:
        """Delete what is done; a file that was there before is untouched."""
        self._require_open()
        with contextlib.suppress(FileNotFoundError), self._naming_failures():
            os.unlink(self._part)
        self._journal.remove()
        self.close()

    def close(self) -> None:
        """Let go of the files; what is done stays for the next run."""
        self._journal.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "MspecWriter":
        """The writer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _require_open(self) -> None:
        if self._descriptor < 0:
            raise InvalidArgument(f"the writer of {printable(self._target)} is closed")

    @contextlib.contextmanager
    def _naming_failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise IoFailure(f"cannot write {printable(self._target)}: {e.strerror}") from e

    def _end(self) -> int:
        """Where the data of the last finished object ends."""
        if not self._journal.objects:
            return HEADER_BYTES
        last = self._journal.objects[-1]
        return last.offset + last.length

    def _keep_what_is_sound(self) -> None:
        n_sound = 0
        for entry in self._journal.objects:
            if not self._holds(entry):
                break
            n_sound += 1
        self._journal.keep(n_sound)
        os.ftruncate(self._descriptor, self._end())
        self._put(bytes(HEADER_BYTES), 0)

    def _holds(self, entry: MspecObject) -> bool:
        """Whether the file has the object as noted, with nothing but zeros after it."""
        end = entry.offset + entry.length
        digest = hashlib.sha256()
        for start in range(entry.offset, end, _READ_BYTES):
            digest.update(os.pread(self._descriptor, min(_READ_BYTES, end - start), start))
        zeros = os.pread(self._descriptor, aligned(end) - end, end)
        return digest.hexdigest() == entry.sha256 and not any(zeros)

    def _write_data(self, name: str, offset: int, length: int, chunks: Iterable[Chunk]) -> str:
        digest = hashlib.sha256()
        n_written = 0
        for chunk in chunks:
            piece = _as_bytes(chunk)
            if n_written + len(piece) <= length:
                digest.update(piece)
                with self._naming_failures():
                    self._put(piece, offset + n_written)
            n_written += len(piece)
            if n_written > length:
                break
        if n_written != length:
            more = "or more " if n_written > length else ""
            raise InvalidArgument(
                f"object {printable(name, 80)} gave {n_written} {more}bytes,"
                f" its declaration takes {length}"
            )
        return digest.hexdigest()

    def _put(self, data: bytes | memoryview, offset: int) -> None:
        """All of the data, in as many pieces as the system wants; zeros fill what is skipped."""
        left = memoryview(data)
        while left:
            n_written = os.pwrite(self._descriptor, left, offset)
            left, offset = left[n_written:], offset + n_written

    def _seal(self, directory: bytes, offset: int, header: bytes) -> None:
        self._put(directory, offset)
        # The header claims everything else, so it goes to the disk after everything else.
        os.fsync(self._descriptor)
        self._put(header, 0)
        os.fsync(self._descriptor)
        _refuse_special(self._target)
        os.replace(self._part, self._target)

    def _forget_unfinished(self) -> None:
        """Back to the end of the last finished object; what stays is cut off by the next run."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self._end())
            self._put(bytes(HEADER_BYTES), 0)


def _as_bytes(chunk: Chunk) -> memoryview:
    if isinstance(chunk, np.ndarray):
        return memoryview(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8))
    view = memoryview(chunk)
    return view.cast("B") if view.nbytes else memoryview(b"")
