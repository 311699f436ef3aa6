"""Owns mbarrier objects in shared memory."""

from typing import Any


class MBarriers:
    """The mbarriers of a batch."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def reset(self) -> None:
        """None is initialised."""
