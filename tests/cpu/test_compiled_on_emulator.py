"""Protects the compiled schedule on the kernels of an H200: the emulator runs them all, with its
sanitiser, over a layer of each kind. A prompt of many rows, then a token."""

from pathlib import Path

from ptx.devices.emulator import EmulatorDevice
from tests import compiled_hybrid as mini

IDS = [(7 * t * t + 13 * t + 5) % 1021 for t in range(18)]


def test_a_prompt_and_a_token(tmp_path: Path) -> None:
    path = mini.write(tmp_path / "mini.mspec", "groupwise-int", mini.SHALLOW)
    want = mini.oracle_of(path, mini.SHALLOW).forward(IDS).logits
    device = EmulatorDevice(target="sm_90a")
    model = mini.model_of(mini.plan_of(path, mini.SHALLOW), device)
    session = model.create_session()
    assert mini.error(mini.rows(model, session, IDS[:17]), want[:17]) < 0.03
    assert mini.error(mini.rows(model, session, IDS[17:]), want[17:]) < 0.03
