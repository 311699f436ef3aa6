"""A thousand random schedules over the hybrid end in the ids and states of the straight runs."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine import prefixes, rollback, transfer
from engine.errors import EngineError
from engine.records import ModelPlan
from engine.session import Session
from tests import hybrid_model
from tests.hybrid_model import Judge, Parts, opened, plan
from tests.hybrid_schedules import Machine, Refused

__all__ = ["plan"]

N_SCHEDULES, N_BLOCKS = 1000, 10


class EngineDriver:
    """The engine's sessions; see `hybrid_schedules.Driver`."""

    def __init__(self, plan: ModelPlan, n_context: int) -> None:
        self.model = opened(plan, n_lanes=3, n_context=n_context)

    def create(self) -> Session:
        return self.model.create_session()

    def free(self, session: Session) -> None:
        session.free()

    def reset(self, session: Session) -> None:
        session.reset()

    def prefill(self, session: Session, tokens: Sequence[int]) -> None:
        _said(session.prefill, tokens)

    def batch(self, sessions: Sequence[Session], tokens: Sequence[int]) -> list[int]:
        return list(_said(self.model.decode_batch, sessions, tokens, [None] * len(sessions)))

    def verify(self, session: Session, tokens: Sequence[int]) -> list[int]:
        return list(_said(session.verify, tokens))

    def trim(self, session: Session, n_tokens: int) -> None:
        _said(rollback.trim, session, n_tokens)

    def retire(self, session: Session, start: int, count: int) -> None:
        _said(rollback.retire, session, start, count)

    def save(self, session: Session, sequence_id: int, n_tokens: int) -> None:
        _said(prefixes.save, session, sequence_id, n_tokens)

    def restore(self, session: Session, sequence_id: int, tokens: Sequence[int]) -> None:
        _said(prefixes.restore, session, sequence_id, tokens)

    def create_from(self, sequence_id: int, tokens: Sequence[int]) -> Session:
        session = self.create()
        self.restore(session, sequence_id, tokens)
        return session

    def drop(self, session: Session, sequence_id: int) -> None:
        _said(prefixes.drop, session, sequence_id)

    def set_position(self, session: Session, position: int) -> None:
        session.set_position(position)

    def position(self, session: Session) -> int:
        return session.position

    def export(self, session: Session) -> bytes:
        return hybrid_model.export(session)

    def load(self, session: Session, data: bytes) -> None:
        _said(transfer.import_full_state, session, bytearray(data))

    def parts(self, session: Session) -> Parts:
        return hybrid_model.parts_of(session)

    def load_cells(self, session: Session, parts: Parts) -> None:
        _said(transfer.import_page, session, parts[0], bytearray(parts[1]))

    def load_recurrent(self, session: Session, parts: Parts) -> None:
        _said(transfer.import_recurrent, session, bytearray(parts[2]))


def _said(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except EngineError as error:
        raise Refused(str(error)) from error


@pytest.fixture(scope="module")
def judge(plan: ModelPlan) -> Judge:
    return Judge(plan, n_said=2)


@pytest.mark.parametrize("block", range(N_BLOCKS))
def test_any_schedule_ends_like_the_straight_run(
    plan: ModelPlan, judge: Judge, block: int
) -> None:
    n = N_SCHEDULES // N_BLOCKS
    for seed in range(block * n, (block + 1) * n):
        rng = random.Random(seed)
        Machine(EngineDriver(plan, rng.choice([40, 96, 200])), rng).run(judge)
