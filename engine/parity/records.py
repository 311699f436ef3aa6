"""Owns the words of a comparison: which way a peer runs, what a run leaves, what a peer can do.

It must not know devices, files nor libraries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

# How a peer runs. "plain": bf16 in one pass, what is compared with. "other": the same in parts with
# a cache and by other kernels. "wide": float32 activations over the same weights, in one pass.
Way = Literal["plain", "other", "wide"]
NOISE: tuple[Way, ...] = ("other", "wide")


@dataclass
class Trace:
    """Of T tokens: the residual stream [T, D] after the embedding (0) and after each layer (its
    number and one), those that were asked for; logits [T, V]."""

    hidden: dict[int, F32]
    logits: F32


class Peer(Protocol):
    """Another implementation over the same weights. All arrays are float32 in main memory."""

    name: str

    def trace(self, ids: Sequence[int], kept: Sequence[int], way: Way) -> Trace:
        """A run over all ids; `kept` are the wanted keys of `Trace.hidden`."""

    def alone(
        self, ids: Sequence[int], hidden: Mapping[int, F32], keys: Sequence[int], way: Way
    ) -> dict[int, F32]:
        """What a layer's two blocks add to given rows, one of the ways "plain" and "wide": of each
        key those of the layer behind `hidden[key - 1]`, summed in float32."""

    def rows(self, ids: Sequence[int], first: int, way: Way) -> F32:
        """Logits after each id from number `first` on."""

    def nll(self, ids: Sequence[int], way: Way) -> F64:
        """Minus the log-probability of each id but the first, in nats."""


class PeerFailure(Exception):
    """A peer cannot run here; the message says why."""


Report = dict[str, Any]
