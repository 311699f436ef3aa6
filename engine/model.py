"""Owns one open model: its device memory, its lanes, its prefix cache and the lock around them.

All sessions of a model share one KV pool of `n_context` cells. One lock serialises everything that
reads or changes sessions; text calls never take it. It must not know C, files or model names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.arena import check_fits, plan_memory
from engine.choosing import finish_step
from engine.chunks import Work
from engine.compiled.program import CompiledProgram
from engine.compiled.program import plan_memory as plan_compiled_memory
from engine.errors import InvalidArgument, RuntimeFailure
from engine.evaluate import evaluate
from engine.held import Held, SamplingKept
from engine.kv_cache import PAGE_TOKENS, KvPool, pages_for
from engine.options import RuntimeOptions
from engine.prefixes import Prefix
from engine.program import MAX_ROWS, Program
from engine.records import ModelPlan
from engine.recurrent import SlotPool, slots_for, write_zero_slot
from engine.sampling import SamplingConfig
from engine.session import Session
from engine.stages import check_present, cut
from ptx.device import Device

Rows = npt.NDArray[np.float32]


def _no_progress(fraction: float) -> None:
    return None


class Model:
    """A plan bound to a device, with `options.n_lanes` lanes for sessions.

    Raises RuntimeFailure when it does not fit and ModelError when the opened parts lack a weight
    that runs here, before anything is allocated.
    """

    def __init__(
        self,
        plan: ModelPlan,
        options: RuntimeOptions,
        device: Device,
        progress: Callable[[float], None] = _no_progress,
    ) -> None:
        stage = options.stage_of(plan.n_layers)
        self.plan = plan = cut(plan, stage) if stage else plan
        check_present(plan)
        self.options = options
        self.lock = threading.RLock()
        self.closed = False
        self.prefixes: dict[int, Prefix] = {}
        self._lanes: list[Session | None] = [None] * options.n_lanes
        n_pages = pages_for(options.n_context)
        n_slots = slots_for(options.n_lanes)
        n_cells = n_pages * PAGE_TOKENS
        self.program: Program | CompiledProgram
        if plan.compiled is not None and device.kind == "gpu":
            check_fits(plan_compiled_memory(plan, n_pages, n_slots), device)
            self.program = CompiledProgram(
                device, plan, n_cells, n_slots, options.n_lanes, progress
            )
        else:
            check_fits(plan_memory(plan, n_pages, n_slots, MAX_ROWS), device)
            self.program = Program(device, plan, n_cells, n_slots, progress)
        write_zero_slot(self.program, plan.states)
        self.slots = SlotPool(self.program, n_slots)
        # Not a method of ours: without a reference cycle a closed model's memory goes at once.
        self.pool = KvPool(options.n_context, self.program.copy_page)

    def create_session(self) -> Session:
        """A new empty session on the lowest free lane; RuntimeFailure when none is free."""
        with self.lock:
            if self.closed:
                raise InvalidArgument("model: was freed by another thread")
            if None not in self._lanes:
                raise RuntimeFailure(
                    f"session: all {len(self._lanes)} lanes are in use"
                )
            lane = self._lanes.index(None)
            session = Session(self, lane)
            self._lanes[lane] = session
            return session

    def release(self, session: Session) -> None:
        """Give back a closed session's lane and cells."""
        self.pool.drop(session.cells)
        session.state.free()
        session.checkpoints.clear()
        self._lanes[session.lane] = None

    def sessions(self) -> list[Session]:
        """The live sessions, by lane."""
        return [session for session in self._lanes if session is not None]

    def close(self) -> list[Session]:
        """Free every session, and return them so that their handles can be forgotten."""
        with self.lock:
            self.closed = True
            sessions = self.sessions()
            for session in sessions:
                session.free()
            return sessions

    def locked(self, session: Session) -> Held:
        """A context: hold the lock for a live session; a freed one is InvalidArgument."""
        return Held(session, intact=False)

    def running(self, session: Session) -> Held:
        """The same for calls that need intact state."""
        return Held(session, intact=True)

    def decode_batch(
        self,
        sessions: Sequence[Session],
        tokens: Sequence[int],
        configs: Sequence[SamplingConfig | None],
        hidden: Sequence[Rows | None] | None = None,
    ) -> list[int]:
        """One token for each session in one pass; all advance by one, or none does."""
        self._check_batch(sessions)
        given = hidden or [None] * len(sessions)
        with self.lock, SamplingKept(sessions):
            works = []
            for session, token, config, rows in zip(sessions, tokens, configs, given, strict=True):
                with self.running(session):
                    ask = session.ask(config, [token])
                works.append(Work(session, [token], "last", rows, ask))
            return finish_step(evaluate(self, works), configs, record=True)

    def run_batch(
        self, sessions: Sequence[Session], tokens: Sequence[int], hidden: Sequence[Rows | None]
    ) -> list[Rows | None]:
        """The same on a stage without output: the hidden rows of each session."""
        self._check_batch(sessions)
        with self.lock:
            works = []
            for session, token, rows in zip(sessions, tokens, hidden, strict=True):
                with self.running(session):
                    works.append(Work(session, [token], "none", rows))
            evaluation = evaluate(self, works)
            evaluation.commit()
            return evaluation.hidden

    def _check_batch(self, sessions: Sequence[Session]) -> None:
        if len({id(session) for session in sessions}) != len(sessions):
            raise InvalidArgument(f"batch: {len(sessions)} requests name a session twice")
        for index, session in enumerate(sessions):
            if session.model is not self:
                raise InvalidArgument(f"batch: request {index} belongs to another model")
