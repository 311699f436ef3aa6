"""Owns the step from logits to tokens for sessions of a pass: choose, then advance, or neither.

A call that fails leaves samplers, positions and cells as they were.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.evaluate import Evaluation
from engine.sampling import SamplingConfig


def finish_step(
    evaluation: Evaluation, configs: Sequence[SamplingConfig | None], *, record: bool = False
) -> list[int]:
    """Choose one token for each work from its last row, then advance every session.

    Nothing advances when any choice fails, so the caller can retry or reset. `record` appends
    a token signal for each session, as batch decoding does.
    """
    with evaluation.guarded():
        chosen = [
            work.session.choose(rows[-1], config, work.tokens)
            for work, rows, config in zip(
                evaluation.works, evaluation.logits, configs, strict=True
            )
        ]
    evaluation.commit()
    if record:
        for work in evaluation.works:
            session = work.session
            signal = session.last_row.signal() if session.last_row is not None else None
            if signal is not None:
                session.signals.append(signal)
    return chosen
