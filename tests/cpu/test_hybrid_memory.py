"""The hybrid's memory: a closed model leaves none, snapshots go with what they were kept for."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from engine import prefixes, rollback
from engine.arena import plan_memory
from engine.kv_cache import pages_for
from engine.model import Model
from engine.program import MAX_ROWS
from engine.records import ModelPlan
from engine.recurrent import slots_for
from engine.recurrent_codec import state_bytes
from tests.hybrid_model import opened, plan, text

__all__ = ["plan"]

KIB = 1 << 10


@pytest.fixture
def held() -> Iterator[Callable[[], int]]:
    """Bytes that Python and numpy hold right now, without waiting for the collector."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.enable()


def used(plan: ModelPlan) -> Model:
    """A model in which everything was kept once: windows, prefixes, several sessions."""
    model = opened(plan, n_lanes=3)
    for lane in range(3):
        session = model.create_session()
        session.prefill(text(20, seed=lane))
        prefixes.save(session, 6 + lane, 20)
        for _ in range(5):
            session.verify([1, 2])
    return model


def test_a_closed_model_leaves_nothing(plan: ModelPlan, held: Callable[[], int]) -> None:
    # What Python and numpy keep for themselves is there after the first round.
    used(plan).close()
    before = held()
    for _ in range(3):
        model = used(plan)
        assert held() - before > model.program.states["delta.0"].nbytes
        model.close()
        del model
        assert held() - before < 64 * KIB


def test_states_and_slots_are_in_the_memory_plan(plan: ModelPlan) -> None:
    model = opened(plan, n_lanes=3)
    slot = sum(array[0].nbytes for array in model.program.states.values())
    with_lanes = plan_memory(plan, pages_for(256), slots_for(3), MAX_ROWS).state_bytes
    assert with_lanes - plan_memory(plan, pages_for(256), 0, MAX_ROWS).state_bytes == 10 * slot


@pytest.mark.parametrize("how", ["trim", "retire", "reset", "set_position", "restore"])
def test_windows_free_their_snapshots(
    plan: ModelPlan, held: Callable[[], int], how: str
) -> None:
    model = opened(plan)
    session, one = model.create_session(), state_bytes(model)
    session.prefill(text(5))
    prefixes.save(session, 2, 5)
    session.verify([1])
    rollback.trim(session, 6)
    before, n_free = held(), model.slots.n_free()
    for _ in range(10):
        session.verify([1])
    # Of them and the prefix two fit into slots.
    assert 8 * one < held() - before < 10 * one
    assert model.slots.n_free() == 0
    if how == "trim":
        rollback.trim(session, session.position)
    elif how == "retire":
        for start in range(6, 16):
            rollback.retire(session, start, 1)
    elif how == "reset":
        session.reset()
    elif how == "set_position":
        session.set_position(16)
    else:
        prefixes.restore(session, 2, text(5))
    # The prefix has moved to main memory.
    assert held() - before < 2 * one
    assert model.slots.n_free() >= n_free


def test_prefixes_free_their_snapshots(plan: ModelPlan, held: Callable[[], int]) -> None:
    model = opened(plan)
    session, one = model.create_session(), state_bytes(model)
    session.prefill(text(5))
    prefixes.save(session, 2, 5)
    prefixes.drop(session, 2)
    before, n_free = held(), model.slots.n_free()
    for sequence_id in range(2, 12):
        session.prefill([1])
        prefixes.save(session, sequence_id, session.position)
    assert 7 * one < held() - before < 11 * one
    for sequence_id in range(2, 12):
        prefixes.save(session, sequence_id, session.position)
    # All of one state, which the session has too.
    assert held() - before < one
    for sequence_id in range(2, 11):
        prefixes.drop(session, sequence_id)
    prefixes.save(session, 11, 0)
    assert held() - before < one
    assert model.slots.n_free() >= n_free
