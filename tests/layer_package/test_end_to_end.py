"""Two processes: one serves a package's files by the command, another takes the files of a stage.

Also a server that lies or dies: each ends in the right error and leaves no file.
"""

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packages import cli
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.transfer.frames import Deadline, read_frame, write_frame
from packages.layer_package.transfer.messages import (
    STREAM_KIND,
    ArtifactRequest,
    ArtifactResponse,
    SubprotocolOpen,
)
from packages.layer_package.transfer.sockets import SocketStream
from tests.layer_package.package_cases import REPO, REVISION, write_tiny_package
from tests.layer_package.served import PEERS, at, serving, snapshot, write_topology

# Answers one request of a connection as `argv[1]` says, and ends.
LIAR = """
import os, socket, sys
from packages.layer_package.transfer.frames import Deadline, read_exact, read_frame, write_frame
from packages.layer_package.transfer.messages import ArtifactRequest, ArtifactResponse
from packages.layer_package.transfer.sockets import SocketStream
how = sys.argv[1]
listener = socket.create_server(("127.0.0.1", 0))
print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
while True:
    stream = SocketStream(listener.accept()[0])
    deadline = Deadline.after(10, "a test")
    read_exact(stream, 32, deadline)
    read_frame(stream, deadline, 1 << 20)
    read_exact(stream, 1, deadline)
    request = ArtifactRequest.decode(read_frame(stream, deadline, 1 << 20))
    data = open(os.path.join(sys.argv[2], request.relative_path), "rb").read()
    is_layer = request.relative_path.startswith("layers/")
    size, sha256 = len(data), request.expected_sha256 or request.manifest_sha256
    if how == "oversized manifest":
        size = (16 << 20) + 1
    write_frame(stream, ArtifactResponse(True, size, sha256).encode())
    if is_layer and how == "sends wrong bytes":
        data = data[:-1] + bytes([data[-1] ^ 1])
    elif is_layer and how == "dies":
        stream.write(data[: len(data) // 2])
        os._exit(1)
    stream.write(data[request.offset:])
    stream.close()
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_tiny_package(snapshot(tmp_path / "coordinator"), projector=True)


@pytest.fixture
def topology(tmp_path: Path, package: Path) -> Path:
    return write_topology(tmp_path / "topology.json", package, [0, 2, 3])


def fetch(
    topology: Path, address: str, stage: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, Any]:
    capsys.readouterr()
    code = cli.main([
        "package", "fetch-artifacts", "--topology", str(topology), "--stage-id", stage,
        "--from", address, "--cache", str(cache), "--json",
    ])  # fmt: skip
    return code, json.loads(capsys.readouterr().out)


def files_of(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_a_stage_comes_whole_and_alone(
    package: Path, topology: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = [f"layers/layer-{i:05d}.gguf" for i in range(3)]
    expected = [
        {"shared/metadata.gguf", "shared/embeddings.gguf", *layers[:2],
         "projectors/mmproj-TinyDemo.gguf"},
        {"shared/metadata.gguf", "shared/output.gguf", layers[2]},
    ]  # fmt: skip
    with serving(topology, tmp_path / "coordinator") as address:
        for index, names in enumerate(expected):
            cache = tmp_path / f"worker{index}"
            code, found = fetch(topology, address, f"stage-{index}", cache, capsys)
            assert code == 0
            root = Path(found["root"])
            assert root == snapshot(cache)
            assert files_of(root) == {MANIFEST_NAME, *names}
            for name in (MANIFEST_NAME, *names):
                assert (root / name).read_bytes() == (package / name).read_bytes()
            start, end = found["layer_start"], found["layer_end"]
            ref = f"hf://{REPO}@{REVISION}"
            words = ["--scope", "stage", "--layers", f"{start}:{end}", "--offline"]
            code = cli.main(["package", "validate", ref, *words, "--cache", str(cache)])
            assert code == 0
        # A second time nothing is asked for.
        before = {p: p.stat().st_ino for p in cache.rglob("*")}
        assert fetch(topology, address, "stage-1", cache, capsys)[0] == 0
        assert {p: p.stat().st_ino for p in cache.rglob("*")} == before


def ask(address: str, peer: bytes, **changed: Any) -> ArtifactResponse:
    """One request as a worker would make it, with some members changed."""
    host, port = at(address)
    stream = SocketStream(socket.create_connection((host, port), 10))
    deadline = Deadline.after(10, "a test")
    values = {
        "requester_id": peer, "topology_id": "t", "run_id": "r", "stage_id": "stage-1",
        "package_ref": f"hf://{REPO}@{REVISION}", "relative_path": "layers/layer-00002.gguf",
        "offset": 0, "expected_size": None, "expected_sha256": None, **changed,
    }  # fmt: skip
    stream.write(peer)
    write_frame(stream, SubprotocolOpen().encode())
    stream.write(STREAM_KIND)
    write_frame(stream, ArtifactRequest(**values).encode())
    answer = ArtifactResponse.decode(read_frame(stream, deadline, 1 << 20))
    stream.close()
    return answer


def test_what_is_not_assigned_is_not_given(package: Path, topology: Path, tmp_path: Path) -> None:
    sha256 = json.loads(topology.read_bytes())["manifest_sha256"]
    with serving(topology, tmp_path / "coordinator") as address:
        good = ask(address, PEERS[1], manifest_sha256=sha256)
        assert good.accepted
        for changed in (
            {"relative_path": "layers/layer-00000.gguf"}, {"stage_id": "stage-0"},
            {"run_id": "other"}, {"manifest_sha256": "0" * 64},
            {"relative_path": "projectors/mmproj-TinyDemo.gguf"},
            {"package_ref": f"hf://{REPO}@main"},
        ):  # fmt: skip
            answer = ask(address, PEERS[1], **{"manifest_sha256": sha256, **changed})
            assert (answer.accepted, answer.error) == (False, "artifact unavailable"), changed
        answer = ask(address, PEERS[1], manifest_sha256=sha256, offset=1 << 40)
        assert (answer.accepted, answer.error) == (False, "invalid transfer offset")


def test_a_server_does_not_give_what_is_damaged(
    package: Path, topology: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(topology, tmp_path / "coordinator") as address:
        # The manifest last, for with it goes everything.
        for name, n_more in (("layers/layer-00002.gguf", 0), (MANIFEST_NAME, 16 << 20)):
            raw = (package / name).read_bytes()
            (package / name).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]) + b" " * n_more)
            cache = tmp_path / "worker" / str(n_more)
            code, found = fetch(topology, address, "stage-1", cache, capsys)
            assert (code, found["error"]["kind"]) == (2, "artifact_unavailable")
            left = files_of(cache)
            assert not [p for p in left if p.endswith((name, ".part"))]


@contextlib.contextmanager
def lying(how: str, package: Path) -> Iterator[str]:
    command = [sys.executable, "-c", LIAR, how, str(package)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("how", "kind"), [
    ("sends wrong bytes", "artifact_sha256_mismatch"),
    ("oversized manifest", "manifest_too_large"), ("dies", None),
])  # fmt: skip
def test_a_server_that_lies_or_dies(
    package: Path, topology: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    how: str, kind: str | None,
) -> None:
    cache = tmp_path / "worker"
    with lying(how, package) as address:
        code, found = fetch(topology, address, "stage-1", cache, capsys)
    assert code == 2
    is_gone = found["error"]["kind"] in ("transfer_truncated", "transfer_disconnected")
    assert is_gone if kind is None else found["error"]["kind"] == kind
    left = {name.rsplit("/", 1)[-1] for name in files_of(cache)}
    assert "layer-00002.gguf" not in left
    # What came of a broken connection may be gone on with; of a lie nothing stays.
    assert kind is None or not [name for name in left if name.endswith(".part")]


def test_nobody_is_there(
    topology: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = fetch(topology, "127.0.0.1:1", "stage-1", tmp_path / "worker", capsys)
    assert (code, found["error"]["kind"]) == (2, "transfer_disconnected")
    code, found = fetch(topology, "127.0.0.1:1", "stage-7", tmp_path / "worker", capsys)
    assert (code, found["error"]["kind"]) == (2, "unknown_stage")


@pytest.mark.parametrize("mode", ["", "off", "trusted", "opne"])
def test_only_the_open_mode_serves(
    topology: Path, mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESH_LLM_ARTIFACT_TRANSFER", mode)
    code = cli.main(["package", "serve-artifacts", "--topology", str(topology), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["error"]["kind"]) == (2, "transfer_disabled")


@pytest.mark.parametrize("text", [
    "[]", "{}", '{"stages": []}',
    '{"topology_id": "t", "run_id": "r", "package_ref": "p", "manifest_sha256": "0",'
    ' "stages": [{"stage_id": "s", "peer": "00", "layers": [0, 1]}]}',
    '{"topology_id": "t", "run_id": "r", "package_ref": "p", "manifest_sha256": "0",'
    ' "stages": [{"stage_id": "s", "peer": 1, "layers": [0, 1]}]}',
    '{"topology_id": "t", "run_id": "r", "package_ref": "p", "manifest_sha256": "0",'
    ' "stages": [{"stage_id": "s", "peer": "%s", "layers": [0, true]}]}' % ("0" * 64),
    '{"topology_id": " ", "stages": [{}]}',
])  # fmt: skip
def test_what_is_no_topology(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "topology.json"
    path.write_text(text)
    code, found = fetch(path, "127.0.0.1:1", "s", tmp_path / "cache", capsys)
    assert (code, found["error"]["kind"]) == (2, "invalid_topology_file")
