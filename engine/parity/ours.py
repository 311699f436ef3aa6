"""Owns our side of a comparison: a compiled model, and what it says of the ids that it is given.

It goes through sessions, as a host does: prompts, decoding alone and in batches. It must not know
the peer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from engine.chunk import Chunk
from engine.chunks import Work
from engine.errors import RuntimeFailure
from engine.evaluate import evaluate
from engine.kv_cache import PAGE_TOKENS
from engine.model import Model
from engine.options import RuntimeOptions
from engine.parity.judge import nll_of
from engine.parity.records import F32, F64, Trace
from engine.parity.texts import SEED, parts_of, random_ids
from engine.records import ModelPlan
from engine.sampling import SamplingConfig
from engine.session import Session
from ptx.device import Device
from ptx.devices.host import HostDevice

# Rows of logits that are in main memory at once, 1 MB each at 248,320 tokens.
NLL_ROWS = 256


class ReferenceHost(HostDevice):
    """The host device as one with kernels: compiled schedules run, on references of their ops."""

    kind: Literal["cpu", "gpu"] = "gpu"


def opened(plan: ModelPlan, device: Device, lengths: Sequence[int]) -> Model:
    """The plan's compiled schedule on a device, with room for sessions of these lengths at once.
    RuntimeFailure for a plan without one, or without room."""
    if plan.compiled is None:
        raise RuntimeFailure(f"{plan.display_path}: no schedule for a device with kernels")
    cells = sum(-(-length // PAGE_TOKENS) * PAGE_TOKENS + PAGE_TOKENS for length in lengths)
    options = RuntimeOptions(
        n_context=cells, n_lanes=len(lengths), n_batch=cells, include_output=True
    )
    return Model(plan, options, device)


def trace(model: Model, ids: Sequence[int], kept: Sequence[int]) -> Trace:
    """A pass of many rows, one of few, then single tokens, after another; no graphs."""
    hidden: dict[int, list[F32]] = {key: [] for key in kept}
    logits: list[F32] = []
    session, at = model.create_session(), 0
    for length in parts_of(len(ids)):
        counter = iter(range(model.plan.n_layers + 1))

        def see(rows: F32, counter: Iterator[int] = counter) -> None:
            key = next(counter)
            if key in hidden:
                hidden[key].append(rows)

        with _watched(model, see):
            logits.append(_rows(model, session, ids[at : at + length]))
        at += length
    session.free()
    return Trace({key: np.concatenate(rows) for key, rows in hidden.items()},
                 np.concatenate(logits))


def greedy(model: Model, prompts: Sequence[Sequence[int]], n_tokens: int) -> list[list[int]]:
    """Greedy ids behind each prompt: every other prompt by itself, the rest in one batch."""
    found: list[list[int]] = [[] for _ in prompts]
    for index in range(0, len(prompts), 2):
        session = model.create_session()
        found[index] = [session.prefill_sampled(prompts[index], None)]
        while len(found[index]) < n_tokens:
            found[index].append(session.decode(found[index][-1], None))
        session.free()
    rest = range(1, len(prompts), 2)
    sessions = [model.create_session() for _ in rest]
    tokens = [s.prefill_sampled(prompts[i], None) for s, i in zip(sessions, rest, strict=True)]
    for step in range(n_tokens if sessions else 0):
        if step:
            tokens = model.decode_batch(sessions, tokens, [None] * len(sessions))
        for index, token in zip(rest, tokens, strict=True):
            found[index].append(token)
    for session in sessions:
        session.free()
    return found


def sampled(model: Model, n_texts: int, n_tokens: int) -> list[list[int]]:
    """Texts that the model itself draws, at temperature 1, each behind a random first id.

    Of such a text its NLL is its entropy, and what other weights say of it is higher by their
    divergence: a number that grows with every error, which it would not of random ids.
    """
    texts = [random_ids(1, model.plan.n_vocab, 1000 + index) for index in range(n_texts)]
    sessions = [model.create_session() for _ in texts]
    configs = [SamplingConfig(version=1, flags=1, seed=SEED + index) for index in range(n_texts)]
    while texts and len(texts[0]) < n_tokens:
        drawn = model.decode_batch(sessions, [text[-1] for text in texts], configs)
        for text, token in zip(texts, drawn, strict=True):
            text.append(token)
    for session in sessions:
        session.free()
    return texts


def nll(model: Model, ids: Sequence[int]) -> F64:
    """Minus the log-probability of each id but the first, in nats, by passes of many rows."""
    session, found = model.create_session(), []
    step = min(NLL_ROWS, model.program.max_rows)
    for at in range(0, len(ids) - 1, step):
        part = ids[at : min(at + step, len(ids) - 1)]
        rows = _rows(model, session, part)
        found.append(nll_of(rows, ids[at + 1 : at + 1 + len(part)]))
    session.free()
    return np.concatenate(found)


class _Watched:
    """A compiled program whose runs are seen."""

    def __init__(self, program: Any, see: Callable[[F32], None]) -> None:
        self._program, self._see = program, see
        self.max_rows: int = program.max_rows

    def run(self, chunk: Chunk) -> Any:
        """What the program's `run` gives."""
        return self._program.run(chunk, self._see)


def _rows(model: Model, session: Session, ids: Sequence[int]) -> F32:
    evaluation = evaluate(model, [Work(session, list(ids), "all")])
    evaluation.commit()
    return evaluation.rows[0]


@contextmanager
def _watched(model: Model, see: Callable[[F32], None]) -> Iterator[None]:
    """Inside, `see` gets the residual stream after the embedding and after each layer."""
    program = model.program
    watched: Any = _Watched(program, see)
    model.program = watched
    try:
        yield
    finally:
        model.program = program
