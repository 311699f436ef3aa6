"""A kernel that faults in the middle of a request: clear refusals, nothing else dies.

The host device with an injected fault stands in for a GPU whose context is lost: from the fault on
every call to it is refused. The emulator and a card run the same flow in their own tests.
"""

from typing import Any

import pytest

from engine import transfer
from engine.devices import find
from engine.errors import RuntimeFailure
from engine.model import Model
from engine.options import RuntimeOptions
from packages.synthetic import synthetic_plan
from ptx.devices.host import HostDevice
from tests.lost_device import LostDevice

TWINS = ["smollm2_135m:tiny", "qwen3_8_27b:tiny"]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def opened(twin: str, device: Any) -> Model:
    options = RuntimeOptions(n_context=128, n_lanes=3, n_batch=32, include_output=True)
    return Model(synthetic_plan(twin), options, device)


@pytest.mark.parametrize("n_launches", [0, 1, 7, 20])
@pytest.mark.parametrize("twin", TWINS)
def test_a_fault_is_a_refusal_and_stays_one(twin: str, n_launches: int) -> None:
    device = LostDevice()
    model = opened(twin, device)
    first, second = model.create_session(), model.create_session()
    first.prefill(PROMPT)
    second.prefill(PROMPT[:3])
    device.arm(n_launches)
    with pytest.raises(RuntimeFailure, match="ILLEGAL_ADDRESS"):
        first.decode(7, None)
    assert (first.position, first.history) == (len(PROMPT), PROMPT)
    for call in (
        lambda: second.decode(7, None), lambda: second.verify([1, 2]),
        lambda: transfer.export_full_state(second), lambda: opened(twin, device),
        lambda: model.decode_batch([first, second], [1, 2], [None, None]),
    ):
        with pytest.raises(RuntimeFailure, match="unusable"):
            call()
    third = model.create_session()
    third.reset()
    third.free()
    assert model.plan.tokenizer.n_vocab > 0
    model.close()
    other = opened(twin, find("CPU").device)
    assert other.create_session().prefill_sampled(PROMPT, None) >= 0
    other.close()


@pytest.mark.parametrize("twin", TWINS)
def test_a_fault_at_any_launch_leaves_the_same_state(twin: str) -> None:
    """Whatever launch of a step fails, what was there before the step is still there."""
    plain = opened(twin, HostDevice())
    wanted = plain.create_session()
    wanted.prefill(PROMPT)
    expected = transfer.export_full_state(wanted)
    for n_launches in range(0, 60, 9):
        device = LostDevice()
        model = opened(twin, device)
        session = model.create_session()
        session.prefill(PROMPT)
        device.arm(n_launches)
        try:
            session.decode(11, None)
        except RuntimeFailure:
            device.lost = False
            assert session.position == len(PROMPT)
            assert transfer.export_full_state(session) == expected
        model.close()
