"""Owns the tests of a coordinator's streams: bad frames, stalls, revocation, too many at once."""

import contextlib
import hashlib
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.errors import TransferError
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.transfer.authorise import StageAssignment, Topology
from packages.layer_package.transfer.frames import Deadline, read_frame, write_all, write_frame
from packages.layer_package.transfer.messages import UNAVAILABLE, ArtifactResponse, SubprotocolOpen
from packages.layer_package.transfer.sockets import SocketStream
from tests.layer_package.coordinator_cases import flip, refusal
from tests.layer_package.package_cases import change_manifest
from tests.layer_package.transfer_cases import (
    LIMITS,
    PEER,
    REF,
    Coordinator,
    send_request,
    snapshot,
)

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path / "cache")


@pytest.mark.parametrize(
    "frames",
    [b"\xff" * 64, b"\x03\x00\x00\x00abc", SubprotocolOpen(name="other").encode(),
     SubprotocolOpen(major=3).encode()],
    ids=["oversized", "garbage", "another-subprotocol", "another-major"],
)  # fmt: skip
def test_a_stream_that_is_not_ours_is_refused(coordinator: Coordinator, frames: bytes) -> None:
    with contextlib.closing(coordinator.connect()) as stream:
        if frames[:1] == b"\x08":
            write_frame(stream, frames)
        else:
            write_all(stream, frames)
        answer = ArtifactResponse.decode(read_frame(stream, Deadline.after(5, "an answer")))
    assert answer == ArtifactResponse(False, error=UNAVAILABLE)
    coordinator.join()


def test_another_stream_kind_is_refused(coordinator: Coordinator) -> None:
    with contextlib.closing(coordinator.connect()) as stream:
        write_frame(stream, SubprotocolOpen().encode())
        write_all(stream, b"\x01")
        answer = ArtifactResponse.decode(read_frame(stream, Deadline.after(5, "an answer")))
    assert answer.error == UNAVAILABLE


def test_a_stream_that_the_mesh_has_opened_begins_with_the_request(
    coordinator: Coordinator,
) -> None:
    mine, theirs = socket.socketpair()
    stream = SocketStream(mine)
    thread = threading.Thread(
        target=coordinator.server.serve, args=(SocketStream(theirs), PEER), kwargs={"is_open": True}
    )
    thread.start()
    write_frame(stream, coordinator.request().encode())
    answer = ArtifactResponse.decode(read_frame(stream, Deadline.after(5, "an answer")))
    assert answer.accepted
    stream.close()
    thread.join(5)


@pytest.mark.parametrize("sent", [b"", b"\x03", b"\x13\x00\x00\x00abc"])
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "stalls"])
def test_a_peer_that_says_too_little_gets_no_answer(
    tmp_path: Path, sent: bytes, ends: bool
) -> None:
    limits = replace(LIMITS, idle_seconds=0.1, open_seconds=0.1)
    coordinator = Coordinator(tmp_path / "cache", limits=limits)
    began = time.monotonic()
    stream = coordinator.connect()
    if sent:
        stream.write(sent)
    if ends:
        stream.close()
    else:
        assert stream.read(1) == b""
        stream.close()
    coordinator.join()
    assert time.monotonic() - began < 10
    (reason,) = coordinator.reasons
    assert reason.kind == ("transfer_truncated" if ends else "transfer_timeout")


def enlarge(coordinator: Coordinator, n_bytes: int = 2 << 20) -> None:
    """Make layer 1 a file that no socket buffer holds whole, and the manifest agree."""
    path = "layers/layer-00001.gguf"
    file = snapshot(coordinator.cache) / path
    data = file.read_bytes() + bytes(n_bytes)
    file.write_bytes(data)

    def change(manifest: dict[str, Any]) -> None:
        digest = hashlib.sha256(data).hexdigest()
        manifest["layers"][1].update(artifact_bytes=len(data), sha256=digest)

    change_manifest(snapshot(coordinator.cache), change)
    manifest = (snapshot(coordinator.cache) / MANIFEST_NAME).read_bytes()
    coordinator.sha256 = hashlib.sha256(manifest).hexdigest()
    coordinator.topology = replace(coordinator.topology, manifest_sha256=coordinator.sha256)
    coordinator.topologies.activate(coordinator.topology)


def begin(coordinator: Coordinator, peer: bytes = PEER, **changes: Any) -> SocketStream:
    """A transfer whose answer has come and whose body waits for its reader."""
    stream = coordinator.connect(peer)
    send_request(stream, coordinator.request(requester_id=peer, **changes).encode())
    answer = ArtifactResponse.decode(read_frame(stream, Deadline.after(5, "an answer")))
    assert answer.accepted
    return stream


def test_a_reader_that_stalls_is_dropped(tmp_path: Path) -> None:
    limits = replace(LIMITS, idle_seconds=0.1, piece_bytes=1 << 20)
    coordinator = Coordinator(tmp_path / "cache", limits=limits)
    enlarge(coordinator)
    stream = begin(coordinator)
    coordinator.join()
    assert [r.kind for r in coordinator.reasons] == ["transfer_timeout"]
    stream.close()


def test_revoking_a_topology_ends_its_transfers_at_once(tmp_path: Path) -> None:
    limits = replace(LIMITS, idle_seconds=30.0, piece_bytes=1 << 20)
    coordinator = Coordinator(tmp_path / "cache", limits=limits)
    enlarge(coordinator)
    stream = begin(coordinator)
    # The first piece has begun, and no buffer holds it: the server waits for its reader.
    assert stream.read(1)
    began = time.monotonic()
    assert coordinator.topologies.revoke("split", "run-1") == 1
    coordinator.join()
    assert time.monotonic() - began < 5
    assert [r.kind for r in coordinator.reasons] == ["transfer_revoked"]
    stream.close()
    coordinator.reasons.clear()
    assert refusal(coordinator, coordinator.request()) == (UNAVAILABLE, "transfer_not_authorised")


def test_an_equal_topology_changes_nothing_and_another_revokes(coordinator: Coordinator) -> None:
    grant = coordinator.topologies.grant_for(coordinator.request(), PEER)
    coordinator.topologies.activate(replace(coordinator.topology))
    assert not grant.revoked
    stages = (StageAssignment("last", 0, PEER, 2, 3),)
    coordinator.topologies.activate(replace(coordinator.topology, stages=stages))
    assert grant.revoked
    assert coordinator.ask(coordinator.request("layers/layer-00002.gguf"))[0].accepted
    assert not coordinator.ask(coordinator.request("layers/layer-00001.gguf"))[0].accepted


def test_a_file_that_changes_in_mid_stream_ends_the_transfer(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "cache", limits=replace(LIMITS, piece_bytes=1 << 20))
    enlarge(coordinator)
    stream = begin(coordinator)
    n_bytes = len(stream.read(1))
    flip(snapshot(coordinator.cache) / "layers/layer-00001.gguf")
    while part := stream.read(1 << 20):
        n_bytes += len(part)
    coordinator.join()
    stream.close()
    assert [r.kind for r in coordinator.reasons] == ["artifact_changed"]
    assert n_bytes == 1 << 20


def test_a_grant_that_was_revoked_meanwhile_lets_nothing_run(coordinator: Coordinator) -> None:
    grant = coordinator.topologies.grant_for(coordinator.request(), PEER)
    coordinator.topologies.revoke("split", "run-1")
    with contextlib.closing(coordinator.connect()) as stream:
        with pytest.raises(TransferError), grant.running(stream):
            pass


def many_peers(coordinator: Coordinator, n_peers: int) -> list[bytes]:
    peers = [bytes([100 + i]) * 32 for i in range(n_peers)]
    stages = [StageAssignment(f"s{i}", i, peer, 1, 3) for i, peer in enumerate(peers)]
    topology = Topology("split", "run-1", REF, coordinator.sha256, tuple(stages))
    coordinator.topologies.activate(topology)
    return peers


def test_17_transfers_at_once_are_one_too_many(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "cache")
    enlarge(coordinator)
    peers = many_peers(coordinator, 6)
    streams = [
        begin(coordinator, peer, stage_id=f"s{i}") for i, peer in enumerate(peers[:4])
        for _ in range(4)
    ]  # fmt: skip
    assert len(streams) == 16
    for i in (4, 0):
        # a fifth peer, and one that has four already
        request = coordinator.request(requester_id=peers[i], stage_id=f"s{i}")
        assert refusal(coordinator_view(coordinator), request, peers[i])[0] == UNAVAILABLE
    assert {r.kind for r in coordinator.reasons} == {"transfer_busy"}
    streams.pop().close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        answer, _ = coordinator.ask(
            coordinator.request(requester_id=peers[4], stage_id="s4"), peers[4]
        )
        if answer.accepted:
            break
    assert answer.accepted
    for stream in streams:
        stream.close()
    coordinator.join()


def coordinator_view(coordinator: Coordinator) -> Coordinator:
    """The same server, whose running transfers are not waited for and whose log is fresh."""
    coordinator.reasons.clear()
    view = object.__new__(Coordinator)
    view.__dict__.update(coordinator.__dict__)
    view.threads = []
    return view


def test_five_transfers_of_one_peer_are_one_too_many(coordinator: Coordinator) -> None:
    enlarge(coordinator)
    streams = [begin(coordinator) for _ in range(4)]
    view = coordinator_view(coordinator)
    assert refusal(view, coordinator.request()) == (UNAVAILABLE, "transfer_busy")
    for stream in streams:
        stream.close()
    coordinator.join()


def test_a_peer_without_a_grant_takes_no_slot(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "cache", limits=replace(LIMITS, per_peer=1, in_all=1))
    idle = [coordinator.connect() for _ in range(5)]
    assert coordinator.ask(coordinator.request())[0].accepted
    for stream in idle:
        stream.close()
    coordinator.join()
