"""Going back in the hybrid when something fails: nothing moves, or a reset is asked for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import rollback
from engine.errors import EngineError, RuntimeFailure, Unsupported
from engine.logits import HostRow
from engine.records import ModelPlan
from engine.session import Session
from ptx.device import DeviceError
from tests.hybrid_model import N_VOCAB, Judge, export, opened, plan, text

__all__ = ["plan"]

PROMPT, WINDOW = text(20), text(4, seed=2)


def breaks(error: BaseException) -> Callable[..., Any]:
    def run(chunk: Any) -> Any:
        raise error

    return run


def infinite(chunk: Any) -> Any:
    """A pass whose logits are not finite."""
    rows = np.full((len(chunk.rows), N_VOCAB), np.inf, np.float32)
    return [HostRow(row) for row in rows], None


@pytest.fixture
def session(plan: ModelPlan) -> Session:
    made = opened(plan, n_lanes=2).create_session()
    made.prefill(PROMPT)
    return made


@pytest.mark.parametrize("error", [DeviceError("gone"), MemoryError(), KeyboardInterrupt()])
def test_a_replay_that_fails_asks_for_a_reset(
    session: Session, plan: ModelPlan, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    session.verify(WINDOW)
    with monkeypatch.context() as patch:
        patch.setattr(session.model.program, "run", breaks(error))
        with pytest.raises(type(error)):
            rollback.trim(session, 22)
    for call in (lambda: session.decode(1, None), lambda: rollback.trim(session, 20),
                 lambda: session.verify([1])):
        with pytest.raises(RuntimeFailure, match="needs a reset"):
            call()
    session.reset()
    session.prefill(PROMPT)
    assert export(session) == Judge(plan)(PROMPT)[0]


@pytest.mark.parametrize("error", [DeviceError("gone"), MemoryError()])
@pytest.mark.parametrize("call", ["prefill", "verify"])
def test_a_pass_that_fails_leaves_the_state(
    session: Session, plan: ModelPlan, monkeypatch: pytest.MonkeyPatch, error: BaseException,
    call: str,
) -> None:
    """Also when it fails behind the first layers, whose states it has written already."""
    run = session.model.program.run

    def late(chunk: Any) -> Any:
        run(chunk)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(session.model.program, "run", late)
        with pytest.raises(type(error)):
            getattr(session, call)(WINDOW)
    assert session.position == len(PROMPT)
    assert export(session) == Judge(plan)(PROMPT)[0]
    session.prefill(WINDOW)
    assert export(session) == Judge(plan)([*PROMPT, *WINDOW])[0]


def test_a_verify_without_finite_logits_is_over(
    session: Session, plan: ModelPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(session.model.program, "run", infinite)
        with pytest.raises(RuntimeFailure, match="needs a reset"):
            session.verify(WINDOW)
    session.reset()
    session.prefill(PROMPT[:3])
    assert export(session) == Judge(plan)(PROMPT[:3])[0]


def test_checkpoints_end(session: Session) -> None:
    for _ in range(rollback.MAX_CHECKPOINTS):
        session.verify([1])
    before = export(session)
    with pytest.raises(Unsupported, match="64 checkpoints"):
        session.verify([1])
    with pytest.raises(Unsupported):
        session.verify_sampled([1], None)
    assert export(session) == before
    # One given up makes room for one; a step without a window needs none.
    rollback.retire(session, len(PROMPT) + 5, 1)
    session.decode(1, None)
    session.verify([1])


def test_what_is_not_covered_is_refused_and_nothing_moves(session: Session) -> None:
    session.verify(WINDOW)
    session.decode(1, None)
    before = export(session)
    for n_tokens in (1, 19, 24):
        with pytest.raises(RuntimeFailure, match="no live verify checkpoint"):
            rollback.trim(session, n_tokens)
        assert (session.position, export(session)) == (25, before)
    with pytest.raises(EngineError, match="position is 25"):
        rollback.trim(session, 26)
    # A refused trim keeps the checkpoint that another one needs.
    rollback.trim(session, 23)
    assert session.position == 23
