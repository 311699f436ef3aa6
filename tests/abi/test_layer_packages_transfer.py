"""Two processes: one serves artifacts, the other fetches each stage into a cache of its own and
runs it through the ABI; the ids are those of the whole model.
"""

import os
import socket
from pathlib import Path

import pytest

from packages.layer_package.load_stage import StageFiles, load_stage
from packages.layer_package.selection import StageRequest
from packages.layer_package.transfer.client import ArtifactClient, StageLoad
from packages.layer_package.transfer.mode import FEATURE, STAGE_FEATURES
from packages.layer_package.transfer.sockets import SocketStream
from packages.layer_package.transfer.topology_file import read_topology
from skippy_abi.client import Host, OpenModel
from tests import tiny
from tests.abi.model_files import Files
from tests.abi.stages import Stages
from tests.layer_package.package_cases import write_tiny_package
from tests.layer_package.served import at, serving, snapshot, write_topology
from tests.layer_package.stage_cases import model_of

PROMPT = [11, 40, 7, 99, 250, 3, 3, 18]


@pytest.fixture
def source(tmp_path: Path, tiny_path: Path) -> Path:
    path = tiny.write(tmp_path / "sent.gguf", seed=9)
    tiny.serve_parts(Path(os.environ["MESH_SPECIALIZE_SERVES"]), path)
    return path


def test_fetched_stages_run_the_split(runtime: Host, source: Path, tmp_path: Path) -> None:
    package = write_tiny_package(snapshot(tmp_path / "coordinator"), model=model_of(source))
    path = write_topology(tmp_path / "topology.json", package, [0, 1, 2])
    topology = read_topology(path.read_bytes())
    files = Files(runtime)

    def fetched(index: int, start: int, end: int) -> OpenModel:
        stage = topology.stages[index]

        def connect() -> SocketStream:
            stream = SocketStream(socket.create_connection(at(address), 10))
            stream.write(stage.peer)
            return stream

        load = StageLoad("t", "r", stage.stage_id, topology.package_ref,
                         topology.manifest_sha256, start, end, end == 2)  # fmt: skip
        client = ArtifactClient(connect, stage.peer, tmp_path / f"worker{index}")
        found = client.fetch_stage(load, features=(*STAGE_FEATURES, FEATURE))

        def loader(stage_files: StageFiles) -> OpenModel:
            chosen = stage_files.selection
            return files.open_parts(
                list(stage_files.paths), stage_index=index, layer_start=start, layer_end=end,
                filter_tensors_on_load=True, include_embeddings=chosen.include_embeddings,
                include_output=chosen.include_output, ctx_size=128,
            )  # fmt: skip

        return load_stage(found, StageRequest(start, end), loader)

    with serving(path, tmp_path / "coordinator") as address:
        stages = Stages(runtime, source, [0, 1, 2], tiny.DIMS.d_model, fetched)
    found = stages.greedy(PROMPT, 10)
    stages.free()
    model = OpenModel(runtime, source, ctx_size=128)
    session = model.session()
    expected = [session.prefill_sampled(PROMPT)]
    for _ in range(10):
        expected.append(session.decode(expected[-1]))
    session.free()
    model.free()
    assert found == expected
