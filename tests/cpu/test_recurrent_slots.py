"""Protects slots of recurrent state: who holds one, that a kept state is never written over nor
copied without need, and that the oldest one moves when slots run out."""

from collections import Counter
from collections.abc import Iterator

import pytest

from engine import prefixes, rollback
from engine.errors import RuntimeFailure
from engine.model import Model
from engine.records import ModelPlan
from engine.recurrent import MAX_KEPT_SLOTS, SlotPool, Snapshot, slots_for
from ptx.device import DeviceError
from tests.hybrid_model import Judge, export, opened, plan, text

__all__ = ["plan"]


class FakeProgram:
    """Slots that hold one number each."""

    def __init__(self, n_slots: int) -> None:
        self.states = {"s": [0] * n_slots}
        self.calls: Counter[str] = Counter()

    def read_slot(self, slot):
        self.calls["read"] += 1
        return {"s": self.states["s"][slot]}

    def write_slot(self, slot, arrays):
        self.calls["write"] += 1
        self.states["s"][slot] = arrays["s"]


@pytest.fixture
def pool() -> SlotPool:
    return SlotPool(FakeProgram(4), 4)


def test_slots_for_lanes_and_for_kept_states() -> None:
    assert [slots_for(n) for n in (1, 2, 4, 16)] == [4, 7, 13, 33 + MAX_KEPT_SLOTS]


def test_a_slot_is_taken_once_and_zero_never(pool: SlotPool) -> None:
    assert sorted(pool.take() for _ in range(3)) == [1, 2, 3]
    with pytest.raises(RuntimeFailure, match="all 4 slots are in use"):
        pool.take()
    pool.release(2)
    assert pool.take() == 2


def test_the_oldest_kept_state_that_nobody_works_with_moves(pool: SlotPool) -> None:
    kept = []
    for value in (11, 12, 13):
        slot = pool.take()
        pool.program.states["s"][slot] = value
        kept.append(pool.keep(value, value, slot))
        if value != 11:
            pool.release(slot)
    # The first is the live state of somebody too.
    taken = pool.take()
    assert [k.slot is None for k in kept] == [False, True, False]
    pool.program.states["s"][taken] = 99
    assert [k.arrays["s"] for k in kept] == [11, 12, 13]
    del kept
    pool.release(taken)
    assert pool.n_free() == 2


def test_kept_states_that_share_a_slot_move_together(pool: SlotPool) -> None:
    kept = []
    for value in (11, 12, 13):
        slot = pool.take()
        pool.program.states["s"][slot] = value
        kept += [pool.keep(value, value, slot) for _ in range(2)]
        pool.release(slot)
    taken = pool.take()
    assert [k.slot is None for k in kept] == [True, True, False, False, False, False]
    pool.program.states["s"][taken] = 99
    assert [k.arrays["s"] for k in kept] == [11, 11, 12, 12, 13, 13]
    assert pool.program.calls["read"] == 5


def test_a_state_that_cannot_move_keeps_its_slot(
    pool: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Snapshot] = []
    for _ in range(3):
        slot = pool.take()
        kept.append(pool.keep(1, 1, slot))
        pool.release(slot)
    with monkeypatch.context() as patch:
        patch.setattr(pool.program, "read_slot", lambda slot: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pool.take()
    assert [k.slot for k in kept] == [1, 2, 3]
    kept.clear()
    assert pool.n_free() == 3


@pytest.fixture
def model(plan: ModelPlan) -> Iterator[tuple[Model, Counter[str]]]:
    made = opened(plan, n_lanes=4)
    calls: Counter[str] = Counter()
    program = made.program
    read, write = program.read_slot, program.write_slot
    program.read_slot = lambda slot: (calls.update(["read"]), read(slot))[1]
    program.write_slot = lambda slot, arrays: (calls.update(["write"]), write(slot, arrays))[1]
    yield made, calls
    for session in made.sessions():
        session.free()
    made.prefixes.clear()
    assert made.slots.n_free() == slots_for(4) - 1


def test_windows_and_prefixes_move_nothing(
    plan: ModelPlan, model: tuple[Model, Counter[str]]
) -> None:
    made, calls = model
    session, other = made.create_session(), made.create_session()
    session.prefill(text(10))
    prefixes.save(session, 20, 10)
    session.verify(text(4, seed=1))
    rollback.trim(session, 12)
    prefixes.restore(other, 20, text(10))
    other.decode(3, None)
    assert +calls == {}
    judge = Judge(plan)
    assert export(session) == judge([*text(10), *text(4, seed=1)[:2]])[0]
    assert export(other) == judge([*text(10), 3])[0]
    # The prefix is as it was, though two sequences went on from its slot.
    prefixes.restore(session, 20, text(10))
    assert export(session) == judge(text(10))[0]


def test_sequences_that_share_a_state_run_in_one_pass(
    plan: ModelPlan, model: tuple[Model, Counter[str]]
) -> None:
    made, _ = model
    first = made.create_session()
    first.prefill(text(10))
    prefixes.save(first, 20, 10)
    sessions = [first, *(made.create_session() for _ in range(3))]
    for session in sessions[1:]:
        prefixes.restore(session, 20, text(10))
    made.decode_batch(sessions, [1, 2, 3, 4], [None] * 4)
    for token, session in zip((1, 2, 3, 4), sessions, strict=True):
        assert export(session) == Judge(plan)([*text(10), token])[0]


def test_a_pass_without_a_slot_changes_nothing(
    plan: ModelPlan, model: tuple[Model, Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = model
    session = made.create_session()
    session.prefill(text(10))
    kept = []
    while made.slots.n_free():
        session.decode(1, None)
        kept.append(session.state.snapshot())
    want = export(session)

    def lost(slot: int) -> None:
        raise RuntimeFailure(f"device: {DeviceError('gone')}")

    with monkeypatch.context() as patch:
        patch.setattr(made.program, "read_slot", lost)
        with pytest.raises(RuntimeFailure, match="gone"):
            session.decode(1, None)
    assert export(session) == want
    session.decode(1, None)
    assert export(session) == Judge(plan)([*text(10), *[1] * (len(kept) + 1)])[0]
    kept.clear()
