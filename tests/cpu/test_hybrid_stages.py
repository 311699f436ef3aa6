"""The hybrid's stages keep state too: of layers without attention, and of both kinds."""

from typing import Any

import numpy as np
import pytest

from engine import prefixes, rollback, transfer
from engine.errors import RuntimeFailure, Unsupported
from engine.model import Model
from engine.options import RuntimeOptions
from engine.records import ModelPlan, Stage
from engine.session import Session
from ptx.devices.host import HostDevice
from tests.hybrid_model import plan, text

__all__ = ["plan"]

TOKENS = text(20)
LAYERS = [(0, 3), (4, 6), (3, 5), (0, 8)]


class Staged:
    """One stage alone, fed with tokens and with rows that follow from them."""

    def __init__(self, plan: ModelPlan, start: int, end: int) -> None:
        self.d_model, self.takes = plan.d_model, start > 0
        stage = Stage(start, end, start == 0, False)
        options = RuntimeOptions(n_context=64, n_lanes=2, n_batch=64, stage=stage)
        self.model = Model(plan, options, HostDevice(poison=True))
        self.session = self.model.create_session()

    def rows(self, tokens: list[int]) -> Any:
        if not self.takes:
            return None
        table = np.random.default_rng(1).standard_normal((320, self.d_model), np.float32)
        return table[tokens]

    def run(self, session: Session, tokens: list[int]) -> bytes:
        hidden = session.prefill(tokens, self.rows(tokens))
        assert hidden is not None
        return hidden.tobytes()


@pytest.fixture(params=LAYERS, ids=[f"{start}-{end}" for start, end in LAYERS])
def staged(plan: ModelPlan, request: pytest.FixtureRequest) -> Staged:
    made = Staged(plan, *request.param)
    made.run(made.session, TOKENS)
    return made


def test_parts_restore_a_stage(staged: Staged) -> None:
    """The host's order; without attention layers it goes on without the page."""
    session, layers = staged.session, staged.model.plan.layer_range
    state, page = bytes(transfer.export_recurrent(session)), None
    if staged.model.plan.kv.layers:
        described = transfer.describe_page(session, *layers, 0, 20)
        page = described, transfer.export_page(session, described)
    else:
        with pytest.raises(Unsupported, match="runtime has no attention KV cache"):
            transfer.describe_page(session, *layers, 0, 20)
    wanted = staged.run(session, [5, 6])
    other = staged.model.create_session()
    other.prefill([7], staged.rows([7]))
    if page:
        transfer.import_page(other, *page)
    transfer.import_recurrent(other, bytearray(state))
    other.set_position(20)
    assert staged.run(other, [5, 6]) == wanted
    assert transfer.export_recurrent(other) == transfer.export_recurrent(session)


def test_whole_state_and_prefix_of_a_stage(staged: Staged) -> None:
    session, other = staged.session, staged.model.create_session()
    data = transfer.export_full_state(session)
    prefixes.save(session, 8, 20)
    wanted = staged.run(session, [5, 6])
    transfer.import_full_state(other, data)
    assert staged.run(other, [5, 6]) == wanted
    prefixes.restore(other, 8, TOKENS)
    assert staged.run(other, [5, 6]) == wanted


def test_windows_of_a_stage_are_run_again_with_their_rows(staged: Staged) -> None:
    session = staged.session
    window = [5, 6, 7, 8]
    session.verify_hidden(window, staged.rows(window))
    rollback.trim(session, 22)
    after = bytes(transfer.export_full_state(session))
    session.reset()
    staged.run(session, [*TOKENS, 5, 6])
    assert transfer.export_full_state(session) == after


def test_state_of_other_layers_is_refused(plan: ModelPlan) -> None:
    """Stages of equal shapes are told apart by their range."""
    one, other = Staged(plan, 0, 3), Staged(plan, 4, 7)
    for staged in (one, other):
        staged.run(staged.session, TOKENS)
    before = bytes(transfer.export_full_state(other.session))
    state = transfer.export_recurrent(one.session)
    assert len(state) == len(transfer.export_recurrent(other.session))
    with pytest.raises(RuntimeFailure, match="all layers"):
        transfer.import_recurrent(other.session, state)
    with pytest.raises(RuntimeFailure, match="layers"):
        transfer.import_full_state(other.session, transfer.export_full_state(one.session))
    assert transfer.export_full_state(other.session) == before
