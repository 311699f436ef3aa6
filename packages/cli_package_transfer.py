"""Owns the commands that give files of a package to peers and take them: serve-, fetch-artifacts.

For two machines that trust their network, and for tests: a mesh host puts the transfer on a
transport of its own, which authenticates peers. Here a connection begins with the peer's 32-byte
id and nothing proves it, so an id is a password: make it of random bytes, keep the file that
holds it private, and listen on loopback or in a tunnel. Only MESH_LLM_ARTIFACT_TRANSFER=open
serves, for there are no owners here.

Both sides read one JSON file, the topology:

    {"topology_id": ..., "run_id": ..., "package_ref": "hf://ns/repo@revision",
     "manifest_sha256": HEX, "stages": [{"stage_id": ..., "peer": 64 HEX, "layers": [0, 12]}, ...]}
"""

import argparse
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.artifacts.strict_json import read_small_file
from packages.cli_package_common import VALID, add_cache, emit, guarded
from packages.layer_package.cache_roots import hub_cache_root
from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.errors import PackageError, TransferError
from packages.layer_package.transfer.authorise import ActiveTopologies, StageAssignment, Topology
from packages.layer_package.transfer.client import ArtifactClient, StageLoad
from packages.layer_package.transfer.messages import PEER_ID_BYTES
from packages.layer_package.transfer.mode import (
    FEATURE,
    STAGE_FEATURES,
    VARIABLE,
    TransferMode,
    Trust,
    transfer_mode,
)
from packages.layer_package.transfer.server import ArtifactServer
from packages.layer_package.transfer.sockets import SocketStream
from packages.layer_package.transfer.topology_file import read_topology
from packages.progress_bar import Bar

MAX_TOPOLOGY_BYTES = 1 << 20
CONNECT_SECONDS = 30.0
MAX_CONNECTIONS = 64


def add(commands: Any) -> None:
    """Add the commands to the subcommands of `package`."""
    given = commands.add_parser("serve-artifacts", help="give files of a split's stages to peers")
    given.add_argument("--topology", type=Path, required=True, metavar="FILE")
    given.add_argument("--listen", type=address, default=("127.0.0.1", 0), metavar="HOST:PORT")
    add_cache(given)
    given.set_defaults(run=guarded(_serve))
    taken = commands.add_parser("fetch-artifacts", help="take the files of a stage from a peer")
    taken.add_argument("--topology", type=Path, required=True, metavar="FILE")
    taken.add_argument("--stage-id", required=True)
    taken.add_argument("--from", dest="peer", type=address, required=True, metavar="HOST:PORT")
    add_cache(taken)
    taken.set_defaults(run=guarded(_fetch))


def address(text: str) -> tuple[str, int]:
    """`HOST:PORT`; argparse's error for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _serve(options: argparse.Namespace) -> int:
    """Until an interrupt or SIGTERM; the address is the first line on standard output."""
    mode = transfer_mode()
    if mode is not TransferMode.OPEN:
        raise TransferError(
            "transfer_disabled",
            f"{VARIABLE} is {mode.value}; this command knows no owners, so only 'open' serves",
        )
    topology = read_topology(read_small_file(options.topology, MAX_TOPOLOGY_BYTES))
    topologies = ActiveTopologies()
    topologies.activate(topology)
    server = ArtifactServer(
        hub_cache_root(options.cache), topologies, trust=Trust(mode), log=_log,
        checksum_cache=ChecksumCache(),
    )  # fmt: skip
    with socket.create_server(options.listen) as listener, _ended_by_signals():
        host, port = listener.getsockname()[:2]
        emit(options, {"host": host, "port": port}, [f"{host}:{port}"])
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            _accept(listener, server)
        topologies.revoke(topology.topology_id, topology.run_id)
    return VALID


def _accept(listener: socket.socket, server: ArtifactServer) -> None:
    room = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def answer(connection: socket.socket) -> None:
        stream = SocketStream(connection)
        try:
            server.serve(stream, _peer_of(stream))
        except PackageError as reason:
            _log(b"", reason)
        finally:
            stream.close()
            room.release()

    while True:
        room.acquire()
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def _peer_of(stream: SocketStream) -> bytes:
    """The id that a connection begins with. TransferError when it does not."""
    peer = b""
    while len(peer) < PEER_ID_BYTES:
        more = stream.read(PEER_ID_BYTES - len(peer))
        if not more:
            raise TransferError("transfer_disconnected", "the connection ended in the peer's id")
        peer += more
    return peer


def _log(peer: bytes, reason: PackageError) -> None:
    print(f"peer {peer.hex()[:8]}: {reason}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM is an interrupt inside the block."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _fetch(options: argparse.Namespace) -> int:
    topology = read_topology(read_small_file(options.topology, MAX_TOPOLOGY_BYTES))
    stage = _stage(topology, options.stage_id)
    load = StageLoad(
        topology.topology_id, topology.run_id, stage.stage_id, topology.package_ref,
        topology.manifest_sha256, stage.layer_start, stage.layer_end, topology.is_last(stage),
    )  # fmt: skip

    def connect() -> SocketStream:
        try:
            stream = SocketStream(socket.create_connection(options.peer, CONNECT_SECONDS))
        except OSError as error:
            raise TransferError(
                "transfer_disconnected", f"the coordinator is not there: {error.strerror or error}"
            ) from None
        stream.write(stage.peer)
        return stream

    client = ArtifactClient(connect, stage.peer, hub_cache_root(options.cache))
    with Bar() as bar:
        # The user who names the address says that it serves; the mesh would have been told.
        package = client.fetch_stage(
            load, features=(*STAGE_FEATURES, FEATURE), progress=bar.show
        )
    root = os.path.abspath(package.root)
    document = {
        "package_ref": package.ref.canonical, "root": root,
        "manifest_sha256": package.manifest.sha256,
        "layer_start": load.layer_start, "layer_end": load.layer_end,
    }  # fmt: skip
    emit(options, document, [root])
    return VALID


def _stage(topology: Topology, stage_id: str) -> StageAssignment:
    for stage in topology.stages:
        if stage.stage_id == stage_id:
            return stage
    raise TransferError(
        "unknown_stage", f"stage {stage_id!r:.80} is not in topology {topology.topology_id!r:.80}"
    )
