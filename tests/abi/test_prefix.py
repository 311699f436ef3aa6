"""Guards resident prefixes over the C ABI, and all state calls together on random schedules.

The judge of a schedule is a model that keeps token lists only and recomputes: whatever the order
of saves, restores, trims, imports and steps, a session holds what a straight run would.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel, OpenSession
from tests.abi.steps import (
    batch,
    call,
    export,
    greedy,
    ids,
    load,
    load_page,
    page,
    raw,
    refused,
    restore,
    save,
    straight,
    trim,
    verify,
)

N_SCHEDULES = 300
N_STEPS = 24


def made_from_prefix(model: OpenModel, sequence_id: int, tokens: list[int]) -> OpenSession:
    out = model.host.ffi.new("struct skippy_session **")
    tokens_c = model.host.ffi.new("int32_t[]", tokens)
    model.host.call("skippy_session_create_from_resident_prefix", model.handle, sequence_id,
                    tokens_c, len(tokens), out)
    return OpenSession(model, out[0])


@pytest.mark.parametrize("n_saved", [1, 15, 16, 17, 32, 40])
def test_a_restored_prefix_goes_on_like_the_session_that_saved_it(
    tiny_model: OpenModel, n_saved: int
) -> None:
    tokens = list(range(50, 90))
    session = tiny_model.session()
    session.prefill(tokens)
    save(session, 8, n_saved)
    # The saving session writes on: into the shared page when the length is no multiple of 16.
    greedy(session, 3, 8)
    trim(session, n_saved)
    session.prefill([200] * 20)
    other = tiny_model.session()
    for n in (n_saved, n_saved // 2, n_saved):
        restore(other, 8, tokens[:n])
        assert other.position == n
        assert (export(other), greedy(other, 9, 4)) == straight(tiny_model, tokens[:n])
    made = made_from_prefix(tiny_model, 8, tokens[:n_saved])
    assert (export(made), greedy(made, 9, 4)) == straight(tiny_model, tokens[:n_saved])
    for one in (session, other, made):
        one.free()


def test_prefixes_outlive_reset_and_free(tiny_model: OpenModel) -> None:
    tokens = list(range(20))
    session = tiny_model.session()
    session.prefill(tokens)
    save(session, 8, 20)
    session.reset()
    session.prefill([7] * 40)
    session.free()
    session = tiny_model.session()
    restore(session, 8, tokens)
    assert (export(session), greedy(session, 9, 4)) == straight(tiny_model, tokens)
    session.free()


@pytest.mark.parametrize("sequence_id", [-(2**31), -1, 0, 7, 1024, 2**31 - 1])
def test_reserved_ids_are_refused(tiny_model: OpenModel, sequence_id: int) -> None:
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    wanted = export(session)
    one = ids(session, [1])
    for outcome in (
        raw(session, "session_save_prefix", sequence_id, 1),
        raw(session, "session_restore_prefix", sequence_id, one, 1),
        raw(session, "session_drop_sequence", sequence_id),
    ):
        refused(outcome, Status.INVALID_ARGUMENT, f"id {sequence_id} ", "8..1023")
    with pytest.raises(AbiError, match=f"id {sequence_id} "):
        made_from_prefix(tiny_model, sequence_id, [1])
    assert (session.position, export(session)) == (3, wanted)
    session.free()


def test_refusals_touch_nothing_and_give_the_lane_back(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    save(session, 8, 2)
    state = export(session)
    refused(raw(session, "session_save_prefix", 8, 4), Status.INVALID_ARGUMENT, "4 tokens", "3")
    refused(raw(session, "session_save_prefix", 8, 2**64 - 1), Status.INVALID_ARGUMENT)
    for sequence_id, n in ((8, 3), (9, 1), (1023, 1)):
        outcome = raw(session, "session_restore_prefix", sequence_id, ids(session, [1] * n), n)
        refused(outcome, Status.INVALID_ARGUMENT, f"sequence {sequence_id} has")
        for _ in range(5):
            with pytest.raises(AbiError):
                made_from_prefix(tiny_model, sequence_id, [1] * n)
    assert (session.position, export(session)) == (3, state)
    others = [tiny_model.session() for _ in range(3)]
    with pytest.raises(AbiError, match="lanes"):
        made_from_prefix(tiny_model, 8, [1, 2])
    for one in (session, *others):
        one.free()


def test_nothing_saved_and_nothing_restored(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    save(session, 8, 3)
    save(session, 8, 0)
    refused(raw(session, "session_restore_prefix", 8, ids(session, [1]), 1),
            Status.INVALID_ARGUMENT, "has 0")
    for sequence_id in (8, 500):
        session.reset()
        session.prefill([1, 2, 3])
        null = session.host.ffi.NULL
        call(session, "session_restore_prefix", sequence_id, null, 0)
        assert (session.position, export(session)) == (0, b"")
    call(session, "session_drop_sequence", 8)
    call(session, "session_drop_sequence", 8)
    call(session, "session_drop_sequence", 777)
    session.free()


def test_a_restore_replaces_history_and_drops_signals(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill([1, 2, 3])
    greedy(session, 4, 3)
    save(session, 8, 2)
    restore(session, 8, [1, 2])
    window = session.host.ffi.new("struct skippy_generation_signal_window *")
    refused(raw(session, "session_signal_window", 16, window), Status.INVALID_ARGUMENT, "0 signals")
    refused(raw(session, "trim_session", 3), Status.INVALID_ARGUMENT, "3 tokens", "position is 2")
    session.free()


def test_a_shared_cell_counts_once_even_behind_a_copied_page(
    runtime: Host, tiny_path: Path
) -> None:
    model = OpenModel(runtime, tiny_path, lane_count=2, ctx_size=32)
    session = model.session()
    tokens = list(range(20))
    session.prefill(tokens)
    save(session, 4, 20)
    save(session, 5, 5)
    session.prefill(range(12))
    assert session.position == 32
    with pytest.raises(AbiError, match="32 cells used, 1 more wanted, 32 in total"):
        session.prefill([1])
    session.reset()
    other = model.session()
    restore(session, 4, tokens)
    restore(other, 5, tokens[:5])
    session.prefill(range(6))
    other.prefill(range(6))
    with pytest.raises(AbiError, match="32 cells used"):
        other.prefill([1])
    call(session, "session_drop_sequence", 4)
    with pytest.raises(AbiError, match="32 cells used"):
        other.prefill([1])
    session.free()
    other.prefill(range(21))
    assert other.position == 32
    model.free()


def test_a_page_that_another_session_took_is_not_written(runtime: Host, tiny_path: Path) -> None:
    """A trimmed session forgets where its former pages were."""
    model = OpenModel(runtime, tiny_path, lane_count=2, ctx_size=128)
    a, b = model.session(), model.session()
    a.prefill(range(20))
    save(a, 4, 10)
    restore(b, 4, list(range(10)))
    trim(a, 16)
    b.prefill(range(30, 60))
    a.prefill(range(100, 110))
    for session, tokens in ((b, [*range(10), *range(30, 60)]),
                            (a, [*range(16), *range(100, 110)])):
        state = export(session)
        found = greedy(session, 9, 4)
        session.free()
        assert (state, found) == straight(model, tokens)
    model.free()


# Schedules


class Recomputed:
    """What each session and prefix should hold, as token lists."""

    def __init__(self, model: OpenModel, rng: random.Random) -> None:
        self.model, self.rng = model, rng
        self.sessions: dict[OpenSession, list[int]] = {}
        self.prefixes: dict[int, list[int]] = {}
        self.states: list[tuple[bytes, list[int]]] = []
        self.pages: list[tuple[Any, bytes, list[int], int]] = []

    def tokens(self, n: int) -> list[int]:
        return [self.rng.randrange(256) for _ in range(n)]

    def pick(self) -> OpenSession:
        return self.rng.choice(list(self.sessions))


def do_create(m: Recomputed) -> None:
    if len(m.sessions) < 3:
        m.sessions[m.model.session()] = []


def do_create_from_prefix(m: Recomputed) -> None:
    if len(m.sessions) < 3 and m.prefixes:
        key = m.rng.choice(list(m.prefixes))
        n = m.rng.randint(0, len(m.prefixes[key]))
        made = made_from_prefix(m.model, key, m.prefixes[key][:n])
        m.sessions[made] = m.prefixes[key][:n]


def do_free(m: Recomputed) -> None:
    if len(m.sessions) > 1:
        session = m.pick()
        del m.sessions[session]
        session.free()


def do_reset(m: Recomputed) -> None:
    session = m.pick()
    session.reset()
    m.sessions[session] = []


def do_prefill(m: Recomputed) -> None:
    session, tokens = m.pick(), m.tokens(m.rng.choice([1, 3, 15, 16, 17]))
    try:
        session.prefill(tokens)
    except AbiError as error:
        assert "in total" in str(error)
    else:
        m.sessions[session] = m.sessions[session] + tokens


def do_batch(m: Recomputed) -> None:
    chosen = m.rng.sample(list(m.sessions), m.rng.randint(1, len(m.sessions)))
    tokens = m.tokens(len(chosen))
    status, message, _ = batch(chosen, tokens)
    if status == Status.OK:
        for session, token in zip(chosen, tokens, strict=True):
            m.sessions[session] = [*m.sessions[session], token]
    else:
        assert "in total" in (message or "")


def do_verify_and_trim(m: Recomputed) -> None:
    session, tokens = m.pick(), m.tokens(m.rng.randint(1, 6))
    try:
        verify(session, tokens)
    except AbiError as error:
        assert "in total" in str(error)
        return
    whole = m.sessions[session] + tokens
    kept = m.rng.randint(len(m.sessions[session]), len(whole))
    trim(session, kept)
    m.sessions[session] = whole[:kept]


def do_trim(m: Recomputed) -> None:
    session = m.pick()
    n = m.rng.randint(0, len(m.sessions[session]))
    trim(session, n)
    m.sessions[session] = m.sessions[session][:n]


def do_step_back(m: Recomputed) -> None:
    """set_position alone leaves the cells; the step behind it replaces them."""
    session = m.pick()
    n = m.rng.randint(0, len(m.sessions[session]))
    call(session, "session_set_position", n)
    trim(session, n)
    m.sessions[session] = m.sessions[session][:n]


def do_save(m: Recomputed) -> None:
    session, key = m.pick(), m.rng.choice([6, 7, 8])
    n = m.rng.randint(0, len(m.sessions[session]))
    save(session, key, n)
    m.prefixes[key] = m.sessions[session][:n]


def do_restore(m: Recomputed) -> None:
    if m.prefixes:
        session, key = m.pick(), m.rng.choice(list(m.prefixes))
        n = m.rng.randint(0, len(m.prefixes[key]))
        restore(session, key, m.prefixes[key][:n])
        m.sessions[session] = m.prefixes[key][:n]


def do_drop(m: Recomputed) -> None:
    key = m.rng.choice([6, 7, 8])
    call(m.pick(), "session_drop_sequence", key)
    m.prefixes.pop(key, None)


def do_export(m: Recomputed) -> None:
    session = m.pick()
    if m.sessions[session]:
        m.states.append((export(session), m.sessions[session]))
        start = m.rng.randint(0, len(m.sessions[session]) - 1)
        count = len(m.sessions[session]) - start
        m.pages.append((*page(session, start, count), m.sessions[session], start))


def do_import(m: Recomputed) -> None:
    if m.states:
        session = m.pick()
        data, tokens = m.rng.choice(m.states)
        session.reset()
        m.sessions[session] = []
        status, message = load(session, data, m.rng.choice(["import_state", "import_full_state"]))
        if status == Status.OK:
            m.sessions[session] = tokens
        else:
            assert "in total" in (message or "")


def do_import_page(m: Recomputed) -> None:
    """A page behind a prefix of the same tokens completes it."""
    if not m.pages:
        return
    session = m.pick()
    desc, data, tokens, start = m.rng.choice(m.pages)
    if m.sessions[session][:start] == tokens[:start] and len(m.sessions[session]) >= start:
        trim(session, start)
        m.sessions[session] = tokens[:start]
        status, message = load_page(session, desc, data)
        if status == Status.OK:
            m.sessions[session] = tokens
        else:
            assert "in total" in (message or "")


ACTIONS = [value for name, value in list(globals().items()) if name.startswith("do_")]


@pytest.fixture(scope="module")
def judge(runtime: Host, tiny_path: Path) -> Iterator[OpenModel]:
    model = OpenModel(runtime, tiny_path, lane_count=1, ctx_size=256)
    yield model
    model.free()


@pytest.mark.parametrize("block", range(10))
def test_any_schedule_leaves_what_a_straight_run_would(
    runtime: Host, tiny_path: Path, judge: OpenModel, block: int
) -> None:
    for seed in range(block * N_SCHEDULES // 10, (block + 1) * N_SCHEDULES // 10):
        rng = random.Random(seed)
        model = OpenModel(runtime, tiny_path, lane_count=3, ctx_size=rng.choice([40, 96, 200]))
        m = Recomputed(model, rng)
        do_create(m)
        trace = []
        for _ in range(N_STEPS):
            action = rng.choice(ACTIONS)
            trace.append(action.__name__)
            action(m)
        for session, tokens in m.sessions.items():
            assert session.position == len(tokens), (seed, trace)
            state, following = straight(judge, tokens)
            assert export(session) == state, (seed, trace)
            room = model_room(m, session)
            assert greedy(session, 9, min(room, 4)) == following[: min(room, 4)], (seed, trace)
            session.reset()
        model.free()


def model_room(m: Recomputed, session: OpenSession) -> int:
    """How many more tokens fit: tried, and taken back."""
    n = len(m.sessions[session])
    for room in range(5):
        try:
            session.prefill([9])
        except AbiError:
            break
    else:
        room = 5
    trim(session, n)
    return room
