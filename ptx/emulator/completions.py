"""Owns asynchronous copies that have been asked for and not yet landed.

It must not know instruction syntax. A copy lands as late as is legal: when somebody's wait covers
it. Until then its destination belongs to it, and its source must stay as it was.
"""

from typing import Any

import numpy as np

from ptx.emulator.lanes import Sel
from ptx.numerics import Array


class Completions:
    """The pending copies of a batch."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def reset(self) -> None:
        """Nothing is pending."""

    def check(self, sel: Sel, space: Any, cells: Array, n_bytes: int, width: int) -> None:
        """Fault when an access touches the destination of a pending copy."""

    def fence(self, sel: Sel) -> None:
        """A proxy fence of these lanes."""

    def at_exit(self, index: Array) -> None:
        """Fault when lanes leave with copies outstanding."""

    def advance(self) -> bool:
        """Let something land because everybody waits; False when nothing is pending."""
        return False


assert np is not None
