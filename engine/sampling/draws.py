"""Owns what a choice on a device is told, and what it tells: a request of one row, and its draw.

Sampler version `device-integer44-chain-1`: the chain of `chain.py` in the arithmetic of the op
`sample`, whose weights are integers, so that every device draws the same token. It is the host's
token but where a running sum lies within rounding of a threshold
(KNOWLEDGE/findings/integer-weights-make-sampling-equal-everywhere.md). Knows no devices.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from engine.sampling import chain
from engine.sampling.config import SamplingConfig

VERSION = "device-integer44-chain-1"
Ids = npt.NDArray[np.int64]


class Draw(NamedTuple):
    """A token, and what it weighs of a total."""

    token: int
    weight: int
    total: int

    @property
    def log_p(self) -> float:
        """Natural log of its probability among what was left."""
        return math.log(self.weight / self.total)


@dataclass(frozen=True)
class DrawRequest:
    """What is done to a row of raw logits before a token is drawn; order as in `chain.py`.

    `tokens` and `counts` int64 [N] are the penalty window's, empty where nothing is penalised;
    `mask` bool [V], True where a grammar allows. At a temperature of 0 or less the best token left
    is taken, and `seed` and `index` are not looked at.
    """

    temperature: float
    top_k: int
    top_p: float
    log_min_p: float
    repeat: float
    frequency: float
    presence: float
    tokens: Ids
    counts: Ids
    bias: tuple[tuple[int, float], ...]
    mask: chain.Mask | None
    seed: int
    index: int


class Drawable(Protocol):
    """A row of logits that may be able to choose by itself."""

    def array(self) -> npt.NDArray[np.float32]:
        """The row, float32 [V]."""

    def draw(self, request: Callable[[], DrawRequest]) -> Draw | None:
        """What the device draws, None where the row has none to do it: nothing is asked for then.

        RuntimeFailure for a corrupt row, and when every token is banned.
        """


NOTHING = SamplingConfig()


def request_of(
    config: SamplingConfig | None, history: chain.History, mask: chain.Mask | None, n_vocab: int,
    seed: int, index: int,
) -> DrawRequest:
    """The request that a config makes after `history`; config None takes the best that the mask
    allows. InvalidArgument for a history that does not fit the vocabulary."""
    active = config or NOTHING
    tokens, counts = chain.window_counts(active, history)
    chain.check_window(tokens, n_vocab)
    return DrawRequest(
        temperature=active.temperature if config else 0.0,
        top_k=max(active.top_k, 0),
        top_p=active.top_p,
        log_min_p=math.log(active.min_p) if 0.0 < active.min_p < 1.0 else -math.inf,
        repeat=active.repeat_penalty or 1.0,
        frequency=active.frequency_penalty,
        presence=active.presence_penalty,
        tokens=tokens,
        counts=counts,
        bias=active.logit_bias,
        mask=mask,
        seed=seed,
        index=index,
    )
