"""Owns a coordinator as a process of its own: serves one package on a loopback port.

    python -m tests.layer_package.transfer_peer CACHE PIECE_BYTES

The mode comes from MESH_LLM_ARTIFACT_TRANSFER. A connection begins with the peer's 32-byte id,
which stands for the mesh's authentication. Prints the port, then one line for each refusal; reads
commands `revoke`, `activate` and answers each with a line that begins with `=`.
"""

import hashlib
import os
import socket
import sys
import threading
from pathlib import Path

from packages.layer_package.errors import PackageError
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.transfer.authorise import ActiveTopologies, StageAssignment, Topology
from packages.layer_package.transfer.limits import TransferLimits
from packages.layer_package.transfer.mode import Owner, Trust, transfer_mode
from packages.layer_package.transfer.server import ArtifactServer
from packages.layer_package.transfer.sockets import SocketStream

PEER = bytes([1]) * 32
OWNER = Owner("me", True)
REVISION = "0123456789abcdef0123456789abcdef01234567"
REF = f"hf://acme-lab/demo-layers@{REVISION}"


def log(peer: bytes, reason: PackageError) -> None:
    """A refusal, for the test to read."""
    say(reason.kind)


def say(line: str) -> None:
    """One line, whole also when several threads write."""
    os.write(1, f"{line}\n".encode())


def accept(listener: socket.socket, server: ArtifactServer) -> None:
    """Serve every connection in a thread."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(connection, server), daemon=True).start()


def serve(connection: socket.socket, server: ArtifactServer) -> None:
    """One connection."""
    peer = connection.recv(32, socket.MSG_WAITALL)
    server.serve(SocketStream(connection, 5.0), peer)


def main(cache: Path, piece_bytes: int) -> None:
    """Serve until told to quit or the input ends."""
    root = cache / "models--acme-lab--demo-layers" / "snapshots" / REVISION
    digest = hashlib.sha256((root / MANIFEST_NAME).read_bytes()).hexdigest()
    stages = (StageAssignment("last", 1, PEER, 1, 3),)
    topology = Topology("split", "run-1", REF, digest, stages)
    topologies = ActiveTopologies()
    topologies.activate(topology)
    server = ArtifactServer(
        cache, topologies, trust=Trust(transfer_mode(), OWNER), owner_of=lambda peer: OWNER,
        log=log, limits=TransferLimits(idle_seconds=5.0, open_seconds=5.0, piece_bytes=piece_bytes),
    )  # fmt: skip
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, args=(listener, server), daemon=True).start()
    say(str(listener.getsockname()[1]))
    for line in sys.stdin:
        command = line.strip()
        if command == "revoke":
            topologies.revoke("split", "run-1")
            say("=revoked")
        elif command == "activate":
            topologies.activate(topology)
            say("=active")
        else:
            break
    # Threads may still wait for their peers.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
