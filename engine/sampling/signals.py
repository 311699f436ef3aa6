"""Owns how sure the model was: the signal of one logit row, and a window over the last ones.

Computed in binary64 from raw logits, before any sampling field; natural logarithms. Knows no
sampler. Contract: the serving ABI's token signal and generation signal window.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidArgument
from engine.sampling.chain import History

HIGH_ENTROPY_NATS = 4.0
# exp(-1000) is zero, and 0 * -1000 is zero too where 0 * -inf would be NaN.
_LOWEST_EXPONENT = -1000.0


@dataclass(frozen=True)
class TokenSignal:
    """Softmax entropy in nats, the two best log-probabilities, their difference, and their ids."""

    entropy: float
    top_logprob: float
    second_logprob: float
    margin: float
    top_token: int
    second_token: int


@dataclass(frozen=True)
class SignalWindow:
    """The last `token_count` signals together, and how often a token repeated its neighbour."""

    token_count: int
    mean_entropy: float
    max_entropy: float
    mean_margin: float
    min_margin: float
    high_entropy_count: int
    repetition_count: int


def token_signal(logits: npt.NDArray[np.float32]) -> TokenSignal | None:
    """The signal of `logits` float32 [V]; lowest ids win ties.

    None when the largest logit is not finite (a NaN anywhere included), or when fewer than two
    tokens exist to compare.
    """
    if logits.shape[0] < 2 or not np.isfinite(logits.max()):
        return None
    top = int(logits.argmax())
    second = _second(logits, top)
    exponents = logits.astype(np.float64)
    exponents -= exponents[top]
    margin = -float(exponents[second])
    np.maximum(exponents, _LOWEST_EXPONENT, out=exponents)
    with np.errstate(under="ignore"):
        weights = np.exp(exponents)
        total = float(weights.sum())
        moment = float(np.dot(weights, exponents))
    log_total = math.log(total)
    return TokenSignal(
        entropy=log_total - moment / total,
        top_logprob=-log_total,
        second_logprob=-margin - log_total,
        margin=margin,
        top_token=top,
        second_token=second,
    )


def _second(logits: npt.NDArray[np.float32], top: int) -> int:
    """The best id apart from `top`, the row's best."""
    before, after = logits[:top], logits[top + 1 :]
    if before.shape[0] == 0:
        return top + 1 + int(after.argmax())
    if after.shape[0] == 0 or before.max() >= after.max():
        return int(before.argmax())
    return top + 1 + int(after.argmax())


def signal_window(signals: Sequence[TokenSignal], history: History, n_window: int) -> SignalWindow:
    """The window over the last `n_window` of `signals` and of `history`, both oldest first.

    InvalidArgument: a window below 1, or no signals.
    """
    if n_window < 1:
        raise InvalidArgument(f"signal window: {n_window} tokens, needs at least 1")
    if not signals:
        raise InvalidArgument("signal window: no token has a signal yet, needs at least 1")
    last = signals[-n_window:]
    entropies = [signal.entropy for signal in last]
    margins = [signal.margin for signal in last]
    tokens = np.asarray(history[-n_window:])
    return SignalWindow(
        token_count=len(last),
        mean_entropy=math.fsum(entropies) / len(last),
        max_entropy=max(entropies),
        mean_margin=math.fsum(margins) / len(last),
        min_margin=min(margins),
        high_entropy_count=sum(entropy > HIGH_ENTROPY_NATS for entropy in entropies),
        repetition_count=int(np.count_nonzero(tokens[1:] == tokens[:-1])),
    )
