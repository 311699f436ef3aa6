"""Owns the command that serves artifacts as a process of its own, and topologies, for tests."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from packages.layer_package.model import MANIFEST_NAME
from tests.layer_package.package_cases import REPO, REVISION

PEERS = [bytes([i + 1]) * 32 for i in range(8)]


def snapshot(cache: Path, repo: str = REPO, revision: str = REVISION) -> Path:
    """Where a package of that commit lies in a hub cache."""
    return cache / f"models--{repo.replace('/', '--')}" / "snapshots" / revision


def write_topology(path: Path, package: Path, edges: Sequence[int]) -> Path:
    """A split of the package at these layers: stages `stage-0` and so on, peer i for stage i."""
    manifest = (package / MANIFEST_NAME).read_bytes()
    document = {
        "topology_id": "t", "run_id": "r", "package_ref": f"hf://{REPO}@{REVISION}",
        "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        "stages": [
            {"stage_id": f"stage-{i}", "peer": PEERS[i].hex(), "layers": [start, end]}
            for i, (start, end) in enumerate(pairwise(edges))
        ],
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path


@contextlib.contextmanager
def serving(topology: Path, cache: Path, end: signal.Signals = signal.SIGTERM) -> Iterator[str]:
    """Address of a process that serves the topology; it ends well at the signal `end`."""
    command = [
        sys.executable, "-m", "packages.cli", "package", "serve-artifacts",
        "--topology", str(topology), "--cache", str(cache),
    ]  # fmt: skip
    environment = {
        **os.environ, "MESH_LLM_ARTIFACT_TRANSFER": "open",
        "SKIPPY_PACKAGE_VERIFY_CACHE_DIR": str(cache.parent / "checksums"),
    }  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, process.communicate()[1]
        yield address
        process.send_signal(end)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


def at(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)
