"""Models on the card through the C ABI: greedy ids and exports against the host device's."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from abi_stubs import stubs
from engine.artifacts.mspec import open_mspec
from engine.errors import ModelError
from packages.smollm2_135m import fetch
from reference.config import TINY
from reference.synthetic import lively
from skippy_abi.build import build_engine
from skippy_abi.client import Host, OpenModel
from tests import tiny, tiny_hybrid

pytestmark = pytest.mark.gpu
PROMPTS = [[11, 40, 7], [5], [99, 3, 250, 18, 77, 200, 31, 60, 61, 62, 63, 64, 65, 1, 2, 3, 4]]
N_TOKENS = 48


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The product's libraries, loaded into this process."""
    folder = tmp_path_factory.mktemp("libraries")
    return Host([stubs.build(folder), build_engine(folder)])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Served models by name; the real one where its file is at hand."""
    folder = tmp_path_factory.mktemp("models")
    dense = tiny.write(folder / "dense.gguf", seed=1)
    hybrid = tiny_hybrid.write(folder / "hybrid.mspec", lively(TINY, seed=5))
    table = tiny.serve(folder / "serves.toml", dense)
    with open_mspec(hybrid) as file:
        digest = file.identity.weights_id
    row = f'\n[[artifact]]\npackage = "qwen3_8_27b:tiny"\ncontent_sha256 = "{digest}"\n'
    table.write_text(table.read_text() + row)
    os.environ["MESH_SPECIALIZE_SERVES"] = str(table)
    found = {"dense": dense, "hybrid": hybrid}
    try:
        found["smollm2"] = fetch.locate(download=False)
    except ModelError as error:
        print(error)
    yield found
    del os.environ["MESH_SPECIALIZE_SERVES"]


def answers(host: Host, path: Path, device: str) -> list[list[int]]:
    """Greedy ids behind every prompt, decoded in one batch order, on one device."""
    name = host.ffi.new("char[]", device.encode())
    model = OpenModel(host, path, ctx_size=256, lane_count=2, selected_backend_device=name)
    found = []
    for prompt in PROMPTS:
        session = model.session()
        token = session.prefill_sampled(prompt)
        ids = [token]
        for _ in range(N_TOKENS):
            token = session.decode(token)
            ids.append(token)
        session.free()
        found.append(ids)
    model.free()
    return found


@pytest.mark.parametrize("name", ["dense", "hybrid", "smollm2"])
def test_greedy_ids_equal_the_host_devices(
    host: Host, models: dict[str, Path], name: str
) -> None:
    if name not in models:
        pytest.skip("the model file is not at hand")
    wanted, found = (answers(host, models[name], device) for device in ("CPU", "CUDA0"))
    assert found == wanted
    assert len({token for ids in found for token in ids}) > 10
