"""Owns answering one request for a file: the checks in their order, the answer, the bytes.

It must not know how streams are made nor who a peer is: the caller authenticates it and says so.
A peer learns one of three texts; the reason goes to the caller's log and nowhere else. Choices: a
peer that is busy, unknown and forbidden gets the same text, and slots are given only to peers with
a grant, so that others cannot take them by opening streams.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.errors import PackageError, TransferError
from packages.layer_package.transfer.authorise import ActiveTopologies, Grant
from packages.layer_package.transfer.frames import (
    ByteStream,
    Deadline,
    read_exact,
    read_frame,
    write_all,
    write_frame,
)
from packages.layer_package.transfer.limits import TransferLimits
from packages.layer_package.transfer.messages import (
    DISABLED,
    INVALID_OFFSET,
    STREAM_KIND,
    UNAVAILABLE,
    ArtifactRequest,
    ArtifactResponse,
    SubprotocolOpen,
)
from packages.layer_package.transfer.mode import Owner, Trust
from packages.layer_package.transfer.place import eligible_ref
from packages.layer_package.transfer.servable import Servable, ServableFiles
from packages.layer_package.transfer.slots import Slots

_TEXTS = {"transfer_disabled": DISABLED, "invalid_transfer_offset": INVALID_OFFSET}
# After these nobody listens for an answer, or the stream is not one of ours.
_SILENT = {"transfer_timeout", "transfer_disconnected", "transfer_truncated"}

Log = Callable[[bytes, PackageError], None]


class ArtifactServer:
    """Serves the files of active topologies. `serve` may run in several threads at once.

    `owner_of(peer)` says who owns a peer, `log(peer, reason)` is told every refusal and every
    transfer that broke off.
    """

    def __init__(
        self,
        cache_root: Path,
        topologies: ActiveTopologies,
        *,
        trust: Trust,
        owner_of: Callable[[bytes], Owner | None] = lambda peer: None,
        log: Log = lambda peer, reason: None,
        checksum_cache: ChecksumCache | None = None,
        limits: TransferLimits | None = None,
    ) -> None:
        """`cache_root` is the hub cache; `limits` as the contract has them if not given."""
        self._limits = TransferLimits() if limits is None else limits
        self._topologies = topologies
        self._trust = trust
        self._owner_of = owner_of
        self._log = log
        self._slots = Slots(self._limits.per_peer, self._limits.in_all)
        self._files = ServableFiles(cache_root, self._limits.manifest_bytes, checksum_cache)

    def serve(self, stream: ByteStream, peer: bytes, *, is_open: bool = False) -> int:
        """Answer the one request of a stream and close it; how many bytes of a file were sent.

        `peer` is the authenticated peer's 32-byte id. `is_open` says that the mesh has read the
        envelope and the kind byte already. Nothing that a peer does is raised.
        """
        try:
            return self._serve(stream, peer, is_open)
        except PackageError as reason:
            self._log(peer, reason)
            return 0
        finally:
            stream.close()

    def _serve(self, stream: ByteStream, peer: bytes, is_open: bool) -> int:
        with contextlib.ExitStack() as held:
            try:
                request = self._read(stream, is_open)
                grant, found = self._admit(request, peer, stream, held)
            except PackageError as reason:
                self._log(peer, reason)
                if reason.kind not in _SILENT:
                    text = _TEXTS.get(reason.kind, UNAVAILABLE)
                    with contextlib.suppress(TransferError):
                        write_frame(stream, ArtifactResponse(False, error=text).encode())
                return 0
            return self._send(stream, request, grant, found)

    def _read(self, stream: ByteStream, is_open: bool) -> ArtifactRequest:
        deadline = Deadline.after(self._limits.open_seconds, "a request")
        if not is_open:
            SubprotocolOpen.decode(read_frame(stream, deadline, self._limits.frame_bytes))
            kind = read_exact(stream, 1, deadline)
            if kind != STREAM_KIND:
                raise TransferError("invalid_transfer_message", f"stream kind {kind[0]:#04x}")
        return ArtifactRequest.decode(read_frame(stream, deadline, self._limits.frame_bytes))

    def _admit(
        self, request: ArtifactRequest, peer: bytes, stream: ByteStream, held: contextlib.ExitStack
    ) -> tuple[Grant, Servable]:
        """Checks 2 to 10; what they take is given back with `held`."""
        if request.requester_id != peer:
            raise TransferError("transfer_requester_mismatch", "the requester is not the peer")
        self._trust.check(self._owner_of(peer))
        eligible_ref(request.package_ref)
        grant = self._topologies.grant_for(request, peer)
        held.enter_context(self._slots.taken(peer))
        held.enter_context(grant.running(stream))
        found = self._files.find(request, grant, lambda: grant.revoked)
        held.enter_context(found.opened)
        return grant, found

    def _send(
        self, stream: ByteStream, request: ArtifactRequest, grant: Grant, found: Servable
    ) -> int:
        write_frame(stream, ArtifactResponse(True, found.n_bytes, found.sha256).encode())
        at = request.offset
        while at < found.n_bytes:
            grant.check()
            deadline = Deadline.after(self._limits.idle_seconds, "a piece")
            piece = self._piece(request, found, at)
            try:
                write_all(stream, piece)
            except TransferError as e:
                grant.check()
                raise TransferError(e.kind, e.issue.message, artifact=request.relative_path) from e
            deadline.check()
            at += len(piece)
        return at - request.offset

    def _piece(self, request: ArtifactRequest, found: Servable, at: int) -> bytes:
        try:
            n_bytes = min(self._limits.piece_bytes, found.n_bytes - at)
            piece = os.pread(found.opened.fd, n_bytes, at)
        except OSError as e:
            raise TransferError(
                "artifact_unreadable", f"byte {at}: {e.strerror}", artifact=request.relative_path
            ) from e
        if not piece or not found.opened.still_same():
            raise TransferError(
                "artifact_changed", f"the file changed after byte {at} was sent",
                artifact=request.relative_path,
            )  # fmt: skip
        return piece
