"""Owns the tests of a transfer between two processes over loopback TCP, and of random peers.

Long because both processes are set up here, and each way that one may end.
"""

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from packages.layer_package.errors import CacheError, TransferError
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.resolve import resolve_package
from packages.layer_package.transfer.client import ArtifactClient, fetch_or_resolve
from packages.layer_package.transfer.frames import Deadline, read_frame
from packages.layer_package.transfer.messages import ArtifactResponse, SubprotocolOpen
from packages.layer_package.transfer.mode import VARIABLE
from packages.layer_package.transfer.sockets import SocketStream
from tests.layer_package.transfer_cases import (
    FEATURES,
    LIMITS,
    PEER,
    REF,
    Coordinator,
    files_of,
    read_all,
    send_request,
    snapshot,
)

ROOT = Path(__file__).resolve().parents[2]
LAYER = "layers/layer-00001.gguf"


class Process:
    """The coordinator's process."""

    def __init__(self, cache: Path, mode: str, piece_bytes: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.layer_package.transfer_peer", cache, str(piece_bytes)],
            cwd=ROOT, env={**os.environ, VARIABLE: mode}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.port = int(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        # what was refused before may stand in between
        while not (line := self.line()).startswith("="):
            assert line, "the process has ended"
        return line

    def connect(self, peer: bytes = PEER) -> SocketStream:
        connection = socket.create_connection(("127.0.0.1", self.port), 5.0)
        connection.sendall(peer)
        return SocketStream(connection, 5.0)


@contextlib.contextmanager
def process(cache: Path, mode: str = "open", piece_bytes: int = 1 << 20) -> Iterator[Process]:
    running = Process(cache, mode, piece_bytes)
    with running.process:
        yield running
        assert running.process.stdin is not None
        running.process.stdin.close()


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    """Its files; the serving is the other process's."""
    return Coordinator(tmp_path / "cache")


@pytest.mark.parametrize("mode", ["open", "trusted"])
def test_one_process_serves_and_another_fetches_a_stage(
    coordinator: Coordinator, tmp_path: Path, mode: str
) -> None:
    cache = tmp_path / "worker"
    with process(coordinator.cache, mode) as peer:
        client = ArtifactClient(peer.connect, PEER, cache)
        package = client.fetch_stage(coordinator.last_load, features=FEATURES)
    source, found = files_of(coordinator.cache), files_of(cache)
    assert found == {path: source[path] for path in found}
    assert len(found) == 5
    # What a load without any peer makes of it: all of the stage is there.
    offline = resolve_package(REF, scope="stage", layers=(1, 3), offline=True, cache=cache)
    assert offline == package


def test_off_means_to_resolve_without_the_peer(coordinator: Coordinator, tmp_path: Path) -> None:
    cache, reasons = tmp_path / "worker", []

    def resolve() -> PackageDir:
        return resolve_package(REF, scope="stage", layers=(1, 3), offline=True, cache=cache)

    with process(coordinator.cache, mode="") as peer:
        client = ArtifactClient(peer.connect, PEER, cache)
        with pytest.raises(CacheError) as caught:
            fetch_or_resolve(
                client, coordinator.last_load, resolve, features=FEATURES, log=reasons.append
            )
        assert peer.line() == "transfer_disabled"
    assert [r.kind for r in reasons] == ["transfer_disabled"]
    assert caught.value.kind == "not_cached"


def test_a_peer_that_is_gone_means_the_same(coordinator: Coordinator, tmp_path: Path) -> None:
    reasons: list[TransferError] = []
    with process(coordinator.cache) as peer:
        pass
    client = ArtifactClient(peer.connect, PEER, tmp_path / "worker")
    package = fetch_or_resolve(
        client, coordinator.last_load,
        lambda: resolve_package(REF, scope="stage", offline=True, cache=coordinator.cache),
        features=FEATURES, log=reasons.append,
    )  # fmt: skip
    assert package.root == snapshot(coordinator.cache)
    assert [r.kind for r in reasons] == ["transfer_disconnected"]


def test_revocation_and_resume_across_processes(coordinator: Coordinator, tmp_path: Path) -> None:
    cache = tmp_path / "worker"
    told: list[str] = []
    with process(coordinator.cache, piece_bytes=100) as peer:
        client = ArtifactClient(peer.connect, PEER, cache, limits=LIMITS)

        def progress(n_bytes: int, _: int) -> None:
            if not told:
                told.append(peer.tell("revoke"))

        with pytest.raises(TransferError):
            client.fetch_stage(coordinator.last_load, features=FEATURES, progress=progress)
        assert told == ["=revoked"]
        assert (snapshot(cache) / MANIFEST_NAME).exists()
        assert len(files_of(cache)) < 5
        assert peer.tell("activate") == "=active"
        client.fetch_stage(coordinator.last_load, features=FEATURES)
    assert len(files_of(cache)) == 5


def test_corruption_at_the_coordinator_is_refused_there(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    file = snapshot(coordinator.cache) / LAYER
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with process(coordinator.cache) as peer:
        client = ArtifactClient(peer.connect, PEER, tmp_path / "worker")
        with pytest.raises(TransferError) as caught:
            client.fetch_stage(coordinator.last_load, features=FEATURES)
        assert caught.value.kind == "artifact_unavailable"
        assert peer.line() == "artifact_sha256_mismatch"


def test_a_peer_with_another_id_gets_nothing(coordinator: Coordinator, tmp_path: Path) -> None:
    with process(coordinator.cache) as peer:
        client = ArtifactClient(lambda: peer.connect(bytes(32)), PEER, tmp_path / "worker")
        with pytest.raises(TransferError):
            client.fetch_stage(coordinator.last_load, features=FEATURES)
        assert peer.line() == "transfer_requester_mismatch"


@pytest.mark.parametrize("seed", range(6))
def test_random_requests_never_get_what_was_not_granted(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    coordinator = Coordinator(tmp_path / "cache")
    granted = {path: data for path, data in files_of(coordinator.cache).items()
               if path not in ("layers/layer-00000.gguf", "shared/embeddings.gguf")}  # fmt: skip
    good = coordinator.request().encode()
    n_accepted = 0
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[at] ^= 1 << rng.randrange(8)
            else:
                data[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
        answer, body = coordinator.ask(bytes(data))
        if answer.accepted:
            n_accepted += 1
            assert any(body and file.endswith(body) for file in granted.values()) or not body
        else:
            assert body == b""
    assert n_accepted > 5
    coordinator.join()


@pytest.mark.parametrize("seed", range(4))
def test_random_streams_end_with_a_refusal_and_leave_the_server_whole(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    coordinator = Coordinator(tmp_path / "cache")
    for _ in range(30):
        with contextlib.closing(coordinator.connect()) as stream:
            with contextlib.suppress(TransferError):
                if rng.random() < 0.5:
                    stream.write(rng.randbytes(rng.randrange(1, 100)))
                else:
                    open_frame = SubprotocolOpen().encode()
                    stream.write(len(open_frame).to_bytes(4, "little") + open_frame + b"\x03")
                    stream.write(rng.randrange(50).to_bytes(4, "little") + rng.randbytes(40))
    coordinator.join()
    assert coordinator.sent == [0] * 30
    assert len(coordinator.reasons) == 30
    assert coordinator.ask(coordinator.request())[0].accepted


@pytest.mark.parametrize("seed", range(4))
def test_random_answers_never_install_anything(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    coordinator = Coordinator(tmp_path / "cache")

    def connect() -> SocketStream:
        mine, theirs = socket.socketpair()
        answer = ArtifactResponse(True, len(coordinator.manifest), coordinator.sha256).encode()
        data = bytearray(len(answer).to_bytes(4, "little") + answer + coordinator.manifest)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        theirs.sendall(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.5 else data)
        theirs.shutdown(socket.SHUT_WR)
        sockets.append(theirs)
        return SocketStream(mine, 5.0)

    sockets: list[socket.socket] = []
    cache = tmp_path / "worker"
    client = ArtifactClient(connect, PEER, cache, limits=LIMITS)
    for _ in range(40):
        with pytest.raises(TransferError):
            client.fetch_stage(coordinator.last_load, features=FEATURES)
        names = {path.rsplit(".", 1)[-1] for path in files_of(cache)}
        assert names <= {"part"}
    for held in sockets:
        held.close()


def test_one_stream_serves_one_request(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "cache")
    with contextlib.closing(coordinator.connect()) as stream:
        send_request(stream, coordinator.request().encode())
        answer = ArtifactResponse.decode(read_frame(stream, Deadline.after(5, "an answer")))
        assert len(read_all(stream)) == answer.total_size
        # a second one on the same stream reaches nobody
        with contextlib.suppress(TransferError):
            send_request(stream, coordinator.request().encode())
    coordinator.join()
    assert coordinator.sent == [answer.total_size]
