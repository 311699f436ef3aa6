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
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.artifacts.closing import Closing
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
from engine.artifacts.mspec_journal import Journal
from engine.artifacts.mspec_part import PartFile
from engine.artifacts.output_file import refuse_special, sync_folder
from engine.errors import InvalidArgument, IoFailure

Chunk = bytes | bytearray | memoryview | npt.NDArray[Any]

PART_SUFFIX = b".part"


class MspecWriter(Closing):
    """Writes one file; a context manager. Leaving it without `finish` keeps what is done, for the
    next run. Not for several threads at once."""

    def __init__(self, path: PathLike, origin: Origin, resume_key: str) -> None:
        """Begin, or go on where a run with this origin and resume key ended.

        `resume_key` stands for the source, in at most 4,096 bytes. What a run of another origin or
        key left is discarded. InvalidArgument for texts that no file holds; IoFailure when the
        system refuses, and while another writer works on the same path.
        """
        self._target = path_bytes(path)
        self._origin = origin
        with self._naming_failures(), contextlib.ExitStack() as on_failure:
            refuse_special(self._target)
            part = self._target + PART_SUFFIX
            self._journal = Journal(part + JOURNAL_SUFFIX, origin, resume_key)
            on_failure.callback(self._journal.close)
            self._part = PartFile(part)
            on_failure.callback(self._part.close)
            self._keep_what_is_sound()
            on_failure.pop_all()
        self._n_bytes = sum(entry.length for entry in self._journal.objects.values())

    @property
    def done(self) -> AbstractSet[str]:
        """Names of the objects that are written, by this run or by the ones it goes on from.

        The others must be written in the order that an uninterrupted run has.
        """
        return self._journal.objects.keys()

    @property
    def n_bytes(self) -> int:
        """Data written so far, by this run or before."""
        return self._n_bytes

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
        if name in self._journal.objects:
            raise InvalidArgument(f"object {printable(name, 80)} is written already")
        if len(self._journal.objects) == MAX_OBJECTS:
            raise InvalidArgument(f"more than {MAX_OBJECTS} objects")
        dims = tuple(map(int, shape))
        try:
            length = object_bytes(kind, dtype, dims, layout)
        except InvalidArgument as e:
            raise InvalidArgument(f"object {printable(name, 80)}: {e}") from e
        try:
            offset = aligned(self._end())
            sha256 = self._write_data(name, offset, length, chunks)
            entry = MspecObject(
                name, Kind(kind), DType(dtype), dims, Layout(layout), offset, length, sha256
            )
            with self._naming_failures():
                self._journal.append(entry)
        except BaseException:
            with contextlib.suppress(OSError):
                self._part.cut(self._end())
            raise
        self._n_bytes += length

    def write_text(self, name: str, text: str, kind: Kind = Kind.TEXT) -> None:
        """Append a text or json object."""
        try:
            raw = text.encode()
        except UnicodeEncodeError as e:
            raise InvalidArgument(f"object {printable(name, 80)} is not text: {e.reason}") from e
        self.write(name, kind, DType.U8, (len(raw),), Layout.ROW_MAJOR, (raw,))

    def finish(self) -> str:
        """Put the file in its place and return its weights_id; the writer is closed either way.

        IoFailure when the system refuses; what is done stays for another run then, and a file that
        was there before is untouched.
        """
        self._require_open()
        objects = list(self._journal.objects.values())
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
                self._part.put(directory, offset)
                refuse_special(self._target)
                self._part.seal(header, self._target)
                self._journal.remove()
        finally:
            # Not cut back on failure: nobody may tell how far it came, and the next run will.
            self.close()
        sync_folder(os.path.dirname(self._target) or b".")
        return identity.weights_id

    def abort(self) -> None:
        """Delete what is done; a file that was there before is untouched."""
        self._require_open()
        with self._naming_failures():
            self._part.remove()
            self._journal.remove()

    def close(self) -> None:
        """Let go of the files; what is done stays for the next run."""
        self._part.close()
        self._journal.close()

    def _require_open(self) -> None:
        if not self._part.is_open:
            raise InvalidArgument(f"the writer of {printable(self._target)} is closed")

    @contextlib.contextmanager
    def _naming_failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise IoFailure(f"cannot write {printable(self._target)}: {e.strerror}") from e

    def _end(self) -> int:
        """Where the data of the last finished object ends."""
        last = self._journal.last
        return last.offset + last.length if last else HEADER_BYTES

    def _keep_what_is_sound(self) -> None:
        n_sound = 0
        for entry in self._journal.objects.values():
            if not self._part.holds(entry):
                break
            n_sound += 1
        self._journal.keep(n_sound)
        self._part.cut(self._end())

    def _write_data(self, name: str, offset: int, length: int, chunks: Iterable[Chunk]) -> str:
        digest = hashlib.sha256()
        n_written = 0
        for chunk in chunks:
            piece = _as_bytes(chunk)
            at = offset + n_written
            n_written += len(piece)
            if n_written > length:
                break
            digest.update(piece)
            with self._naming_failures():
                self._part.put(piece, at)
        if n_written != length:
            more = "or more " if n_written > length else ""
            raise InvalidArgument(
                f"object {printable(name, 80)} gave {n_written} {more}bytes,"
                f" its declaration takes {length}"
            )
        return digest.hexdigest()


def _as_bytes(chunk: Chunk) -> memoryview:
    if isinstance(chunk, np.ndarray):
        return np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
    view = memoryview(chunk)
    return view.cast("B") if view.nbytes else memoryview(b"")
