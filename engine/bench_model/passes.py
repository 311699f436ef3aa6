"""Owns how passes of a model are timed as its callers feel them: prompts, decoding, batches.

Every figure is a median over passes after the first ones of their shape, which load kernels and
record graphs. It must not know what is done with a figure.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine.bench_model.step_bytes import Shape, must_read
from engine.bench_model.step_times import launches_of, step_row, whole_us
from engine.model import Model
from engine.session import Session

WARM_STEPS = 2
# Tokens that a session of a batch has before it decodes.
BATCH_CONTEXT = 64


def prompt_of(n_tokens: int, n_vocab: int, shift: int = 0) -> list[int]:
    """Ids without a pattern that a kernel could like."""
    return [(17 + 7919 * (i + shift)) % n_vocab for i in range(n_tokens)]


@contextmanager
def sessions_of(model: Model, n_sessions: int) -> Iterator[list[Session]]:
    """So many new sessions, freed again whatever happens."""
    made: list[Session] = []
    try:
        for _ in range(n_sessions):
            made.append(model.create_session())
        yield made
    finally:
        for session in made:
            session.free()


def prefill(model: Model, n_tokens: int) -> dict[str, Any]:
    """Two prompts of that many tokens; the second is timed."""
    times = []
    for turn in range(2):
        with sessions_of(model, 1) as (session,):
            ids = prompt_of(n_tokens, model.plan.n_vocab, turn)
            started = time.perf_counter()
            session.prefill_sampled(ids, None)
            times.append(time.perf_counter() - started)
    return {"n_tokens": n_tokens, "first_s": times[0], "tokens_per_s": n_tokens / times[1]}


def bring(model: Model, sessions: Sequence[Session], n_context: int) -> None:
    """Let every session have `n_context` tokens and one more; a longer one starts again."""
    for index, session in enumerate(sessions):
        if session.needs_reset or session.position > n_context + 1:
            session.reset()
        ids = prompt_of(n_context + 1, model.plan.n_vocab, index)[session.position :]
        if ids:
            session.prefill(ids)


def decode(
    model: Model, device: Any, sessions: Sequence[Session], n_context: int, n_steps: int
) -> dict[str, Any]:
    """Steps of sessions that have `n_context` tokens each; they are longer afterwards.

    `device_ms` is the step's own time, of one graph of its launches; the rest is the host's.
    """
    bring(model, sessions, n_context)
    tokens = prompt_of(len(sessions), model.plan.n_vocab)
    times = []
    for _ in range(WARM_STEPS + n_steps):
        started = time.perf_counter()
        tokens = _step(model, sessions, tokens)
        times.append(time.perf_counter() - started)
    measured, n_batch = sorted(times[WARM_STEPS:]), len(sessions)
    step_s, shape = statistics.median(measured), shape_of(sessions)
    launches = launches_of(model, device, shape)
    device_ms = whole_us(device, launches) / 1e3 if launches else None
    return {
        "n_context": n_context, "n_batch": n_batch, "step_ms": 1e3 * step_s,
        "least_ms": 1e3 * measured[0], "most_ms": 1e3 * measured[-1],
        "tokens_per_s": n_batch / step_s, "device_ms": device_ms,
        "host_us_per_token": None if device_ms is None
        else 1e3 * (1e3 * step_s - device_ms) / n_batch,
        "read_bytes": must_read(model.plan, shape) if model.plan.compiled else None,
    }


def shape_of(sessions: Sequence[Session]) -> Shape:
    """The pass by which each of these came to its newest token."""
    return Shape(len(sessions), len(sessions), sum(session.position for session in sessions))


def _step(model: Model, sessions: Sequence[Session], tokens: list[int]) -> list[int]:
    if len(sessions) == 1:
        return [sessions[0].decode(tokens[0], None)]
    return model.decode_batch(sessions, tokens, [None] * len(sessions))


def decode_table(model: Model, device: Any, n_batch: int, n_context: int) -> dict[str, Any]:
    """The table of one decode step of `n_batch` sessions with `n_context` tokens each."""
    with sessions_of(model, n_batch) as sessions:
        bring(model, sessions, n_context)
        _step(model, sessions, prompt_of(n_batch, model.plan.n_vocab))
        return step_row(model, device, shape_of(sessions), f"{n_batch}@{n_context}")


def prompt_table(model: Model, device: Any, n_rows: int) -> dict[str, Any]:
    """The table of one chunk of a prompt, its first."""
    with sessions_of(model, 1) as (session,):
        session.prefill_sampled(prompt_of(n_rows, model.plan.n_vocab), None)
        return step_row(model, device, Shape(n_rows, 1, n_rows), f"prompt@{n_rows}")
