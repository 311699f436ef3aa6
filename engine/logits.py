"""Owns what a pass gives for a row that wanted logits: the row, and what is asked of it most.

A row may still lie on the device: the greedy token and the signal come from there without it. It
must not know sessions nor devices.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.sampling import Draw, DrawRequest, TokenSignal, greedy_token, token_signal

Row = npt.NDArray[np.float32]


class LogitsRow(Protocol):
    """Logits of one position."""

    def array(self) -> Row:
        """All of them, float32 [V]."""

    def greedy(self) -> int:
        """The best token, the lowest id of equal ones; RuntimeFailure for a corrupt row."""

    def signal(self) -> TokenSignal | None:
        """The row's signal, None for a corrupt row."""

    def expect(self, request: Callable[[], DrawRequest]) -> None:
        """Say, before anything is asked, what the first `draw` will be for."""

    def draw(self, request: Callable[[], DrawRequest]) -> Draw | None:
        """What the device draws, None where the row has none to do it."""

    def is_finite(self) -> bool:
        """Whether the row can be used."""

    def kept(self) -> "LogitsRow":
        """The same for as long as somebody holds it."""


class HostRow:
    """A row in main memory."""

    def __init__(self, row: Row) -> None:
        """Of float32 [V], not copied."""
        self._row = row

    def array(self) -> Row:
        """The row itself."""
        return self._row

    def greedy(self) -> int:
        """The best token; RuntimeFailure for a NaN or infinity anywhere in the row."""
        return greedy_token(self._row)

    def signal(self) -> TokenSignal | None:
        """In float64 arithmetic."""
        return token_signal(self._row)

    def expect(self, request: Callable[[], DrawRequest]) -> None:
        """Nothing: no device draws from it."""

    def draw(self, request: Callable[[], DrawRequest]) -> None:
        """None: the sampler looks at the row."""
        return None

    def is_finite(self) -> bool:
        """Whether every logit is."""
        return bool(np.isfinite(self._row).all())

    def kept(self) -> "HostRow":
        """A copy, so that the rows beside it may go."""
        return HostRow(self._row.copy())
