"""Owns who may have what: active topologies, their stages, the files that a stage needs.

It must not know modes and owners (`mode.py`), streams' contents, nor where files lie. A topology
is served from `activate` to `revoke`; revoking it closes the streams that it let run.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from packages.layer_package.embedding_need import FragmentOf
from packages.layer_package.errors import TransferError
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.selection import Selection, select_parts
from packages.layer_package.transfer.frames import ByteStream
from packages.layer_package.transfer.messages import ArtifactRequest


@dataclass(frozen=True, slots=True)
class StageAssignment:
    """Layers [layer_start, layer_end) given to the peer with that 32-byte id."""

    stage_id: str
    stage_index: int
    peer: bytes
    layer_start: int
    layer_end: int


@dataclass(frozen=True, slots=True)
class Topology:
    """A split of one package, as the coordinator has chosen it."""

    topology_id: str
    run_id: str
    package_ref: str
    manifest_sha256: str
    stages: tuple[StageAssignment, ...]

    def is_last(self, stage: StageAssignment) -> bool:
        """Whether the stage is the one that owns the output."""
        return stage.stage_index == max(other.stage_index for other in self.stages)


class Grant:
    """One stage of an active topology; compared by identity, so that it can key what is known."""

    def __init__(self, topology: Topology, stage: StageAssignment) -> None:
        """Of a stage of that topology."""
        self.topology = topology
        self.stage = stage
        self.is_last = topology.is_last(stage)
        self._lock = threading.Lock()
        self._streams: set[ByteStream] = set()
        self._revoked = False

    @property
    def revoked(self) -> bool:
        """Whether nothing more may be sent under it."""
        return self._revoked

    def check(self) -> None:
        """TransferError `transfer_revoked`."""
        if self._revoked:
            raise TransferError(
                "transfer_revoked", f"topology {self.topology.topology_id!r} was revoked"
            )

    @contextlib.contextmanager
    def running(self, stream: ByteStream) -> Iterator[None]:
        """A block in which `stream` is closed when the grant is revoked."""
        with self._lock:
            self.check()
            self._streams.add(stream)
        try:
            yield
        finally:
            with self._lock:
                self._streams.discard(stream)

    def revoke(self) -> int:
        """Close what runs; how many streams that were."""
        with self._lock:
            self._revoked = True
            streams = list(self._streams)
        for stream in streams:
            stream.close()
        return len(streams)


class ActiveTopologies:
    """The topologies that are served now. Safe to use from several threads."""

    def __init__(self) -> None:
        """None yet."""
        self._lock = threading.Lock()
        self._grants: dict[tuple[str, str], dict[str, Grant]] = {}

    def activate(self, topology: Topology) -> None:
        """Serve it. One with the same topology and run id is revoked, unless it is equal."""
        key = (topology.topology_id, topology.run_id)
        with self._lock:
            old = self._grants.get(key, {})
            if any(grant.topology == topology for grant in old.values()):
                return
            self._grants[key] = {s.stage_id: Grant(topology, s) for s in topology.stages}
        for grant in old.values():
            grant.revoke()

    def revoke(self, topology_id: str, run_id: str) -> int:
        """Serve it no more and close its streams; how many were closed."""
        with self._lock:
            grants = self._grants.pop((topology_id, run_id), {})
        return sum(grant.revoke() for grant in grants.values())

    def grant_for(self, request: ArtifactRequest, peer: bytes) -> Grant:
        """The grant by which `peer` asks. TransferError `transfer_not_authorised`."""
        with self._lock:
            stages = self._grants.get((request.topology_id, request.run_id))
        if stages is None:
            raise _refused(f"no active topology {request.topology_id!r}, run {request.run_id!r}")
        grant = stages.get(request.stage_id)
        if grant is None or grant.stage.peer != peer:
            raise _refused(f"stage {request.stage_id!r} is not assigned to this peer")
        if grant.topology.package_ref != request.package_ref:
            raise _refused(f"the topology does not run package {request.package_ref!r}")
        if grant.topology.manifest_sha256.lower() != request.manifest_sha256:
            raise _refused(f"the topology does not run manifest {request.manifest_sha256}")
        return grant


def needed_artifacts(
    manifest: Manifest,
    layer_start: int,
    layer_end: int,
    *,
    is_last: bool,
    fragment_of: FragmentOf | None = None,
) -> tuple[tuple[Artifact, ...], Selection]:
    """The files of a stage in the order in which they are asked for, and the selection behind it:
    parts in load order, then every projector for a stage that starts at layer 0.

    SelectionError as `select_parts`.
    """
    selection = select_parts(
        manifest, layer_start, layer_end,
        input_boundary=layer_start == 0, output_boundary=is_last, fragment_of=fragment_of,
    )  # fmt: skip
    projectors = manifest.projectors if layer_start == 0 else ()
    return (*selection.parts, *projectors), selection


def _refused(message: str) -> TransferError:
    return TransferError("transfer_not_authorised", message)
