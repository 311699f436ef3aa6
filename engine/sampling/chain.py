"""Owns the sampler version `host-binary64-chain-1`: which tokens survive a config's extra fields.

The order is mask, penalties, bias, top-k, top-p, min-p; then `plain.draw` takes one of the
survivors, in increasing token id, at the config's temperature. Inside this path alone -inf is
legal: it marks a banned token. Ties at the edge of top-k and top-p go to the lowest ids. Whatever
the fields say, at least one token survives unless every one of them is banned. Knows no random
state; the history is given with each call, so a rejected draft leaves no trace in the penalties.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidArgument, RuntimeFailure
from engine.sampling.config import SamplingConfig

VERSION = "host-binary64-chain-1"

Float64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
History = Sequence[int] | npt.NDArray[np.integer]


def survivors(
    logits: npt.NDArray[np.float32],
    config: SamplingConfig | None,
    history: History,
    mask: Mask | None,
) -> tuple[Ids, Float64]:
    """Surviving ids int64 [N], increasing, and their adjusted logits float64 [N], N >= 1.

    logits float32 [V], finite; mask bool [V], True where the grammar allows, or None; config None
    applies the mask alone. At temperature 0 or less the best token is the only survivor.
    RuntimeFailure when nothing is left; InvalidArgument for a mask or history that does not fit.
    """
    z = _adjusted(logits, config, history, mask)
    best = int(z.argmax())
    if not math.isfinite(z[best]):
        raise RuntimeFailure(
            f"sampler: the best of {z.shape[0]} adjusted logits is {z[best]}, needs a finite one"
            " (mask and bias ban every token)"
        )
    if config is None or config.temperature <= 0.0:
        return np.array([best], dtype=np.int64), z[best : best + 1]
    ids = np.arange(z.shape[0])
    if config.top_k > 0:
        ids, z = _best(ids, z, config.top_k)
    allowed = z > -np.inf
    if not allowed.all():
        ids, z = ids[allowed], z[allowed]
    if 0.0 < config.top_p < 1.0:
        ids, z = _best(ids, z, _nucleus_count(z, config.top_p))
    if 0.0 < config.min_p < 1.0:
        kept = z >= z.max() + math.log(config.min_p)
        ids, z = ids[kept], z[kept]
    return ids, z


def _adjusted(
    logits: npt.NDArray[np.float32],
    config: SamplingConfig | None,
    history: History,
    mask: Mask | None,
) -> Float64:
    """Mask, penalties and bias on a widened copy of the row, float64 [V]."""
    z = logits.astype(np.float64)
    if mask is not None:
        if mask.shape != z.shape:
            raise InvalidArgument(f"sampler: mask shape {list(mask.shape)}, needs {list(z.shape)}")
        z[~mask] = -np.inf
    if config is not None:
        if config.penalises:
            _penalise(z, config, history)
        for token, bias in config.logit_bias:
            z[token] += bias
    return z


def window_counts(config: SamplingConfig, history: History) -> tuple[Ids, Ids]:
    """Tokens of the penalty window, increasing, and how often each is there: int64 [N] each; none
    where the config penalises nothing."""
    if not config.penalises:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    window = history[-config.penalty_last_n :] if config.penalty_last_n > 0 else history
    return np.unique(np.asarray(window, np.int64), return_counts=True)


def check_window(tokens: Ids, n_vocab: int) -> None:
    """InvalidArgument when the increasing `tokens` of a window are not all of the vocabulary."""
    if len(tokens) and (tokens[0] < 0 or tokens[-1] >= n_vocab):
        raise InvalidArgument(
            f"sampler: history tokens {tokens[0]} to {tokens[-1]}, needs 0 to {n_vocab - 1}"
        )


def _penalise(z: Float64, config: SamplingConfig, history: History) -> None:
    """Change `z` float64 [V] in place for each token of the window, once with its count."""
    tokens, counts = window_counts(config, history)
    check_window(tokens, z.shape[0])
    seen = z[tokens]
    repeat = config.repeat_penalty or 1.0
    # Both branches push a seen token down: a negative logit grows, a positive one shrinks.
    seen = np.where(seen > 0.0, seen / repeat, seen * repeat)
    z[tokens] = seen - counts * config.frequency_penalty - config.presence_penalty


def _best(ids: Ids, z: Float64, n_kept: int) -> tuple[Ids, Float64]:
    """The `n_kept` highest of `z`, still in increasing id; the lowest ids win a tie at the edge."""
    n_cut = z.shape[0] - n_kept
    if n_cut <= 0:
        return ids, z
    edge = np.partition(z, n_cut)[n_cut]
    kept = np.flatnonzero(z >= edge)
    if kept.shape[0] > n_kept:
        above = z[kept] > edge
        n_ties = n_kept - int(np.count_nonzero(above))
        kept = np.sort(np.concatenate((kept[above], kept[~above][:n_ties])))
    return ids[kept], z[kept]


def _nucleus_count(z: Float64, top_p: float) -> int:
    """How many of the best tokens reach `top_p` of the probability at temperature 1."""
    falling = np.sort(z)[::-1]
    with np.errstate(under="ignore"):
        running = np.cumsum(np.exp(falling - falling[0]))
    return int(np.searchsorted(running, top_p * running[-1], side="left")) + 1
