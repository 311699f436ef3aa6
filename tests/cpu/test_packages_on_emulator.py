"""Protects both packages' schedules on the emulator, sanitiser on: logits and greedy ids of tiny
models are those of the host device, within float32.

Every op of the schedules runs its own PTX kernel, through the engine as it serves.
"""

from pathlib import Path
from typing import cast

import numpy as np

from engine.artifacts.content_digest import content_digest
from engine.artifacts.gguf import open_gguf
from engine.model import Model
from engine.options import RuntimeOptions
from engine.records import ModelPlan
from packages.smollm2_135m import PACKAGE as DENSE
from ptx.device import Device
from ptx.devices.emulator import EmulatorDevice
from ptx.devices.host import HostDevice
from ptx.numerics import Array
from tests import hybrid_greedy, tiny, tiny_hybrid

PROMPT = [5, 200, 31, 7]
N_STEPS = 3


def run(plan: ModelPlan, device: Device) -> tuple[Array, list[int]]:
    """Logits of the prompt in one call; then its continuation, one id a step."""
    options = RuntimeOptions(n_context=64, n_lanes=1, n_batch=64, include_output=True)
    model = Model(plan, options, device)
    logits = hybrid_greedy.engine_logits(model, PROMPT)
    return logits, hybrid_greedy.engine_greedy(model, PROMPT, N_STEPS)


def compare(plan: ModelPlan) -> None:
    # Its buffers are its own type, opaque to the engine.
    logits, ids = run(plan, cast(Device, EmulatorDevice()))
    want_logits, want_ids = run(plan, HostDevice())
    # Two orders of float32 sums: 3e-6 of the logits' range was seen.
    assert np.max(np.abs(logits - want_logits)) < 2e-5 * np.ptp(want_logits)
    assert ids == want_ids


def test_the_dense_package(tmp_path: Path) -> None:
    with open_gguf(tiny.write(tmp_path / "tiny.gguf")) as file:
        compare(DENSE.artifact("tiny", None, content_digest(file)).plan(file))


def test_the_hybrid_package(tmp_path: Path) -> None:
    path = tiny_hybrid.write(tmp_path / "tiny.mspec", hybrid_greedy.weights(21))
    compare(hybrid_greedy.plan_of(path))
