"""Models on the card through the C ABI: greedy ids against the host device's and the oracle's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reference.config import TINY
from reference.hybrid import Hybrid
from reference.synthetic import lively
from skippy_abi.client import Host
from tests import device_models

pytestmark = pytest.mark.gpu
N_TOKENS = 48


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The product's libraries, loaded into this process."""
    return device_models.libraries(tmp_path_factory.mktemp("libraries"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Served models by name; the real one where its file is at hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESH_SPECIALIZE_SERVES", "")
        yield device_models.served(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", ["dense", "hybrid", "smollm2"])
def test_greedy_ids_equal_the_host_devices(
    host: Host, models: dict[str, Path], name: str
) -> None:
    if name not in models:
        pytest.skip("the model file is not at hand")
    wanted, found = (
        device_models.answers(host, models[name], device, N_TOKENS) for device in ("CPU", "CUDA0")
    )
    assert found == wanted
    assert len({token for ids in found for token in ids}) > 10


def test_greedy_ids_equal_the_oracles(host: Host, models: dict[str, Path]) -> None:
    oracle = Hybrid(lively(TINY, seed=5), TINY)
    wanted = [oracle.greedy(prompt, N_TOKENS + 1).ids for prompt in device_models.PROMPTS]
    assert device_models.answers(host, models["hybrid"], "CUDA0", N_TOKENS) == wanted
