"""Owns a coordinator with a package in a hub cache, and a worker with an empty one, for tests."""

import contextlib
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packages.layer_package.errors import PackageError
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.transfer.authorise import ActiveTopologies, StageAssignment, Topology
from packages.layer_package.transfer.client import ArtifactClient, StageLoad
from packages.layer_package.transfer.frames import (
    ByteStream,
    Data,
    Deadline,
    read_frame,
    write_all,
    write_frame,
)
from packages.layer_package.transfer.limits import TransferLimits
from packages.layer_package.transfer.messages import (
    STREAM_KIND,
    ArtifactRequest,
    ArtifactResponse,
    SubprotocolOpen,
)
from packages.layer_package.transfer.mode import FEATURE, STAGE_FEATURES, TransferMode, Trust
from packages.layer_package.transfer.server import ArtifactServer
from packages.layer_package.transfer.sockets import SocketStream
from tests.layer_package.package_cases import read_json, write_tiny_package

REVISION = "0123456789abcdef0123456789abcdef01234567"
REF = f"hf://acme-lab/demo-layers@{REVISION}"
REPOSITORY = "models--acme-lab--demo-layers"
PEER, OTHER = bytes([1]) * 32, bytes([2]) * 32
FEATURES = (*STAGE_FEATURES, FEATURE)
# Small, so that a stalled peer costs a test little.
LIMITS = TransferLimits(idle_seconds=2.0, open_seconds=2.0, piece_bytes=1000)
OPEN = Trust(TransferMode.OPEN)


def snapshot(cache: Path) -> Path:
    """The package's folder in a hub cache."""
    return cache / REPOSITORY / "snapshots" / REVISION


def files_of(cache: Path) -> dict[str, bytes]:
    """Every regular file of the snapshot, hidden ones too."""
    root = snapshot(cache)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*")) if path.is_file()
    }  # fmt: skip


@dataclass
class Coordinator:
    """A server with one package of three layers; layers [0, 1) go to OTHER, [1, 3) to PEER."""

    cache: Path
    trust: Trust = OPEN
    limits: TransferLimits = LIMITS
    options: dict[str, Any] = field(default_factory=dict)
    package: dict[str, Any] = field(default_factory=dict)
    reasons: list[PackageError] = field(default_factory=list)

    def __post_init__(self) -> None:
        write_tiny_package(snapshot(self.cache), **self.package)
        self.manifest = (snapshot(self.cache) / MANIFEST_NAME).read_bytes()
        self.sha256 = hashlib.sha256(self.manifest).hexdigest()
        self.document = read_json(snapshot(self.cache))
        self.topologies = ActiveTopologies()
        self.topology = Topology(
            "split", "run-1", REF, self.sha256,
            (StageAssignment("first", 0, OTHER, 0, 1), StageAssignment("last", 1, PEER, 1, 3)),
        )  # fmt: skip
        self.topologies.activate(self.topology)
        self.server = ArtifactServer(
            self.cache, self.topologies, trust=self.trust, limits=self.limits,
            log=lambda peer, reason: self.reasons.append(reason), **self.options,
        )  # fmt: skip
        self.threads: list[threading.Thread] = []
        self.sent: list[int] = []

    @property
    def last_load(self) -> StageLoad:
        """What the worker of the last stage was told."""
        return StageLoad("split", "run-1", "last", REF, self.sha256, 1, 3, True)

    @property
    def first_load(self) -> StageLoad:
        """What the worker of the first stage was told."""
        return StageLoad("split", "run-1", "first", REF, self.sha256, 0, 1, False)

    def entry(self, path: str) -> dict[str, Any]:
        """The manifest's entry of a path."""
        entries = [*self.document["shared"].values(), *self.document["layers"],
                   *self.document.get("projectors", [])]  # fmt: skip
        (found,) = (e for e in entries if e["path"] == path)
        return dict(found)

    def connect(self, peer: bytes = PEER, send_bytes: int | None = None) -> SocketStream:
        """A new stream to the server, which serves it in a thread; `send_bytes` of its buffer."""
        mine, theirs = socket.socketpair()
        if send_bytes is not None:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        stream = SocketStream(theirs, self.limits.idle_seconds)
        thread = threading.Thread(target=lambda: self.sent.append(self.server.serve(stream, peer)))
        thread.start()
        self.threads.append(thread)
        return SocketStream(mine, 5.0)

    def request(self, path: str = "layers/layer-00001.gguf", **changes: Any) -> ArtifactRequest:
        """A request of PEER that is granted, unless changed."""
        plain = ArtifactRequest(PEER, "split", "run-1", "last", REF, self.sha256, path)
        return replace(plain, **changes)

    def ask(
        self, request: ArtifactRequest | bytes, peer: bytes = PEER
    ) -> tuple[ArtifactResponse, bytes]:
        """Send a request (bytes: as they are); the answer and whatever follows it."""
        with contextlib.closing(self.connect(peer)) as stream:
            data = request if isinstance(request, bytes) else request.encode()
            send_request(stream, data)
            answer = ArtifactResponse.decode(read_frame(stream, Deadline.after(5, "an answer")))
            return answer, read_all(stream)

    def join(self) -> None:
        """Wait for all that the server does."""
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()

    def client(
        self, cache: Path, connect: Callable[[], ByteStream] | None = None, peer: bytes = PEER
    ) -> ArtifactClient:
        """A worker with that cache."""
        return ArtifactClient(connect or (lambda: self.connect(peer)), peer, cache, limits=LIMITS)


def send_request(stream: ByteStream, data: bytes) -> None:
    """Envelope, kind and request."""
    write_frame(stream, SubprotocolOpen().encode())
    write_all(stream, STREAM_KIND)
    write_frame(stream, data)


def read_all(stream: ByteStream) -> bytes:
    """Everything up to the end."""
    out = b""
    while part := stream.read(1 << 16):
        out += part
    return out


class Tampered:
    """A stream to a real server whose reads pass through `change`, which may also raise."""

    def __init__(self, inner: ByteStream, change: Callable[[bytes], bytes]) -> None:
        self.inner, self.change = inner, change

    def read(self, n_bytes: int, /) -> bytes:
        return self.change(self.inner.read(n_bytes))

    def write(self, data: Data, /) -> None:
        self.inner.write(data)

    def close(self) -> None:
        self.inner.close()


@contextlib.contextmanager
def fake_peer(answer: Callable[[ByteStream, ArtifactRequest], None]) -> Iterator[
    Callable[[], SocketStream]
]:
    """A peer that reads a request as it should and then does what `answer` does."""
    threads: list[threading.Thread] = []

    def run(stream: SocketStream) -> None:
        with contextlib.closing(stream):
            deadline = Deadline.after(5, "a request")
            SubprotocolOpen.decode(read_frame(stream, deadline))
            assert stream.read(1) == STREAM_KIND
            request = ArtifactRequest.decode(read_frame(stream, deadline))
            with contextlib.suppress(PackageError):
                answer(stream, request)

    def connect() -> SocketStream:
        mine, theirs = socket.socketpair()
        threads.append(threading.Thread(target=run, args=(SocketStream(theirs, 5.0),)))
        threads[-1].start()
        return SocketStream(mine, LIMITS.idle_seconds)

    yield connect
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
