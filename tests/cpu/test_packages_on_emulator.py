"""Greedy ids of tiny models on the emulator, sanitiser on, against those of the host device.

Every op of both packages' schedules runs its own PTX kernel, through the engine as it serves.
"""

from pathlib import Path

from engine.artifacts.content_digest import content_digest
from engine.artifacts.gguf import open_gguf
from engine.model import Model
from engine.options import RuntimeOptions
from engine.records import ModelPlan
from packages.smollm2_135m import PACKAGE as DENSE
from ptx.device import Device
from ptx.devices.emulator import EmulatorDevice
from ptx.devices.host import HostDevice
from tests import hybrid_greedy, tiny, tiny_hybrid

PROMPT = [5, 200, 31, 7]
N_STEPS = 3


def greedy_ids(plan: ModelPlan, device: Device) -> list[int]:
    """The prompt in one call, then one id a step."""
    options = RuntimeOptions(n_context=64, n_lanes=1, n_batch=64, include_output=True)
    return hybrid_greedy.engine_greedy(Model(plan, options, device), PROMPT, N_STEPS)


def test_the_dense_package(tmp_path: Path) -> None:
    with open_gguf(tiny.write(tmp_path / "tiny.gguf")) as file:
        plan = DENSE.artifact("tiny", None, content_digest(file)).plan(file)
        assert greedy_ids(plan, EmulatorDevice()) == greedy_ids(plan, HostDevice())


def test_the_hybrid_package(tmp_path: Path) -> None:
    path = tiny_hybrid.write(tmp_path / "tiny.mspec", hybrid_greedy.weights(21))
    plan = hybrid_greedy.plan_of(path)
    assert greedy_ids(plan, EmulatorDevice()) == greedy_ids(plan, HostDevice())
