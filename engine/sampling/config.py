"""Owns a request's sampling configuration and what every hostile value in it means.

Knows no logits and no random state. Contract: the serving ABI's sampling struct; its fields arrive
here under their own names, 32-bit floats widened.
"""

import math
from dataclasses import dataclass

from engine.errors import InvalidArgument

MAX_LOGIT_BIAS = 256
CONFIG_VERSION = 1
_FINITE = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "min_p",
)


@dataclass(frozen=True)
class SamplingConfig:
    """One request's sampling fields; equal configs continue one random sequence.

    `validate` refuses, or the value has the limit on the right (only when enabled: a config of
    version 0 or flags 0 is greedy and nothing else in it is looked at):

    field               refused                  limit
    version             above 1                  0: not set, greedy
    flags               -                        0: greedy; any other value: enabled
    seed                outside 0 .. 2^32 - 1    0: 8 bytes of the system; 2^32 - 1 is ordinary
    top_k               -                        0 or less: off; above the vocabulary: all
    penalty_last_n      below -1                 0 and -1: the whole history
    temperature         NaN, infinite            0 or less: the best token, no random word
    top_p, min_p        NaN, infinite            outside the open interval 0 .. 1: off
    presence_penalty,
    frequency_penalty   NaN, infinite            0: off
    repeat_penalty      NaN, infinite, below 0   0: as 1, off
    logit_bias ids      outside the vocabulary   duplicates add up
    logit_bias values   NaN, +infinity           -infinity bans the id
    logit_bias count    -                        entries past the first 256 are dropped
    """

    version: int = 0
    flags: int = 0
    seed: int = 0
    top_k: int = 0
    penalty_last_n: int = -1
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit_bias", tuple(self.logit_bias[:MAX_LOGIT_BIAS]))

    @property
    def enabled(self) -> bool:
        """False: greedy on the raw logits, whatever the other fields say."""
        return self.version != 0 and self.flags != 0

    @property
    def penalises(self) -> bool:
        """Whether any of the three penalties changes a logit."""
        return (
            self.repeat_penalty not in (0.0, 1.0)
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def uses_chain(self) -> bool:
        """Whether a field beyond seed and temperature takes part."""
        return (
            self.penalises
            or bool(self.logit_bias)
            or self.top_k > 0
            or 0.0 < self.top_p < 1.0
            or 0.0 < self.min_p < 1.0
        )

    def validate(self, n_vocab: int) -> None:
        """Raise InvalidArgument naming the field and value that the table above refuses."""
        if not self.enabled:
            return
        if self.version > CONFIG_VERSION:
            raise _refusal("version", self.version, f"at most {CONFIG_VERSION}")
        if not 0 <= self.seed < 1 << 32:
            raise _refusal("seed", self.seed, "0 to 4294967295")
        if self.penalty_last_n < -1:
            raise _refusal("penalty_last_n", self.penalty_last_n, "at least -1")
        for name in _FINITE:
            value = getattr(self, name)
            if not math.isfinite(value):
                raise _refusal(name, value, "a finite number")
        if self.repeat_penalty < 0.0:
            raise _refusal("repeat_penalty", self.repeat_penalty, "at least 0")
        for index, (token, bias) in enumerate(self.logit_bias):
            if not 0 <= token < n_vocab:
                limit = f"0 to {n_vocab - 1}"
                raise _refusal(f"logit_bias[{index}].token", token, limit)
            if math.isnan(bias) or bias == math.inf:
                raise _refusal(f"logit_bias[{index}].bias", bias, "a number below infinity")


def _refusal(field: str, value: float, limit: str) -> InvalidArgument:
    return InvalidArgument(f"sampling config: {field} is {value}, needs {limit}")
