"""Owns the step from logits to tokens for sessions of a pass: choose, then advance, or neither.

A call that fails leaves samplers, positions and cells as they were.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engine.evaluate import Evaluation
from engine.sampling import SamplingConfig

if TYPE_CHECKING:
    from engine.session import Session


@contextmanager
def sampling_kept(sessions: Sequence[Session]) -> Iterator[None]:
    """A call that fails leaves each session's sampler, and how far its draws got, as they were."""
    kept = [copy.copy(session.sampling) for session in sessions]
    try:
        yield
    except BaseException:
        for session, sampling in zip(sessions, kept, strict=True):
            session.sampling = sampling
            sampling.rewind(len(session.history))
            if session.chat:
                session.chat.sampler.rewind(len(session.history))
        raise


def finish_step(
    evaluation: Evaluation, configs: Sequence[SamplingConfig | None], *, record: bool = False
) -> list[int]:
    """Choose one token for each work from its last row, then advance every session.

    Nothing advances when any choice fails, so the caller can retry or reset. `record` appends
    a token signal for each session, as batch decoding does.
    """
    sessions = [work.session for work in evaluation.works]
    chosen = []
    with evaluation.guarded():
        for session, work, rows, config in zip(
            sessions, evaluation.works, evaluation.logits, configs, strict=True
        ):
            chosen.append(session.choose(rows[-1], config, work.tokens))
    evaluation.commit()
    if record:
        for session in sessions:
            signal = session.last_row.signal() if session.last_row is not None else None
            if signal is not None:
                session.signals.append(signal)
    return chosen
