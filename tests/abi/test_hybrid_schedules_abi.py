"""A hundred random schedules over the hybrid through the C ABI end like the straight runs."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenSession
from tests.abi import hybrid, steps
from tests.abi.hybrid import Judge, Parts, opened
from tests.hybrid_schedules import Machine, Refused

N_SCHEDULES, N_BLOCKS = 100, 4


class AbiDriver:
    """Sessions through the ABI; see `hybrid_schedules.Driver`."""

    def __init__(self, runtime: Host, hybrids: Path, ctx: int) -> None:
        self.model = opened(runtime, hybrids, n_lanes=3, ctx=ctx)

    def create(self) -> OpenSession:
        return self.model.session()

    def free(self, session: OpenSession) -> None:
        session.free()

    def reset(self, session: OpenSession) -> None:
        session.reset()

    def prefill(self, session: OpenSession, tokens: Sequence[int]) -> None:
        _said(session.prefill, tokens)

    def batch(self, sessions: Sequence[OpenSession], tokens: Sequence[int]) -> list[int]:
        status, message, chosen = steps.batch(sessions, tokens)
        _ok((status, message))
        return chosen

    def verify(self, session: OpenSession, tokens: Sequence[int]) -> list[int]:
        return list(_said(steps.verify, session, tokens))

    def trim(self, session: OpenSession, n_tokens: int) -> None:
        _said(steps.trim, session, n_tokens)

    def retire(self, session: OpenSession, start: int, count: int) -> None:
        _said(steps.call, session, "retire_verify_checkpoint", start, count)

    def save(self, session: OpenSession, sequence_id: int, n_tokens: int) -> None:
        _said(steps.save, session, sequence_id, n_tokens)

    def restore(self, session: OpenSession, sequence_id: int, tokens: Sequence[int]) -> None:
        _said(steps.restore, session, sequence_id, tokens)

    def create_from(self, sequence_id: int, tokens: Sequence[int]) -> OpenSession:
        out = self.model.host.ffi.new("struct skippy_session **")
        ids = self.model.host.ffi.new("int32_t[]", list(tokens))
        self.model.host.call("skippy_session_create_from_resident_prefix", self.model.handle,
                             sequence_id, ids, len(tokens), out)
        return OpenSession(self.model, out[0])

    def drop(self, session: OpenSession, sequence_id: int) -> None:
        _said(steps.call, session, "session_drop_sequence", sequence_id)

    def set_position(self, session: OpenSession, position: int) -> None:
        _said(steps.call, session, "session_set_position", position)

    def position(self, session: OpenSession) -> int:
        return session.position

    def export(self, session: OpenSession) -> bytes:
        return hybrid.export(session)

    def load(self, session: OpenSession, data: bytes) -> None:
        _ok(hybrid.load(session, data))

    def parts(self, session: OpenSession) -> Parts:
        return hybrid.parts_of(session, session.position)

    def load_cells(self, session: OpenSession, parts: Parts) -> None:
        _ok(steps.load_page(session, *parts[:2]))

    def load_recurrent(self, session: OpenSession, parts: Parts) -> None:
        _ok(hybrid.load_recurrent(session, parts[2]))


def _ok(outcome: tuple[int, str | None]) -> None:
    if outcome[0] != Status.OK:
        raise Refused(outcome[1])


def _said(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except AbiError as error:
        raise Refused(str(error)) from error


@pytest.mark.parametrize("block", range(N_BLOCKS))
def test_any_schedule_ends_like_the_straight_run(
    runtime: Host, hybrids: Path, hybrid_judge: Judge, block: int
) -> None:
    n = N_SCHEDULES // N_BLOCKS
    for seed in range(block * n, (block + 1) * n):
        # Other schedules than the engine's own thousand.
        rng = random.Random(10_000 + seed)
        driver = AbiDriver(runtime, hybrids, rng.choice([40, 96, 200]))
        Machine(driver, rng).run(hybrid_judge)
        driver.model.free()
