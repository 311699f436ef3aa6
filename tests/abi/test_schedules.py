"""Guards all state calls together, on random schedules of three sessions and three prefixes.

The judge is a model that keeps token lists only and recomputes: whatever the order of saves,
restores, trims, imports and steps, a session holds what a straight run would.
"""

import random
from collections.abc import Callable, Iterator
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
    load,
    load_page,
    made_from_prefix,
    page,
    restore,
    save,
    straight,
    trim,
    verify,
)

N_SCHEDULES = 300
N_STEPS = 24


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

    def fits(self, step: Callable[[], object]) -> bool:
        """Make a step that may be refused for want of room, and for nothing else."""
        try:
            step()
        except AbiError as error:
            if "in total" not in str(error):
                raise
            return False
        return True

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
    if m.fits(lambda: session.prefill(tokens)):
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
    if not m.fits(lambda: verify(session, tokens)):
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
    while session.position < n + 5:
        try:
            session.prefill([9])
        except AbiError:
            break
    room = session.position - n
    trim(session, n)
    return room
