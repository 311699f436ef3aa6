"""Owns one progress count over a call of several parts, and asking whether to go on.

It must not know what is counted. Bytes done never go back and never pass the total.
"""

from collections.abc import Callable

from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.errors import Cancelled


class Meter:
    """Bytes done of `total_bytes`, told to the caller's `progress` as they come."""

    def __init__(
        self, total_bytes: int, progress: Progress | None, cancelled: IsCancelled | None, doing: str
    ) -> None:
        """`doing` names the call in the error of one that was cancelled."""
        self.cancelled = cancelled
        self._total, self._doing = total_bytes, doing
        self._progress = progress
        self._done = 0

    def ask(self) -> None:
        """Raise Cancelled when the caller wants no more."""
        if self.cancelled is not None and self.cancelled():
            raise Cancelled(self._doing)

    def add(self, n_bytes: int) -> None:
        """More bytes are done; Cancelled when the caller wants no more."""
        self.ask()
        self._tell(self._done + n_bytes)

    def part(self) -> Callable[[int, int], None]:
        """A progress callback for a part that counts from 0."""
        start = self._done
        return lambda done, _: self._tell(start + done)

    def finish(self) -> None:
        """All is done, whatever was counted: a hit counts nothing."""
        self._tell(self._total)

    def _tell(self, done: int) -> None:
        self._done = max(self._done, min(done, self._total))
        if self._progress is not None:
            self._progress(self._done, self._total)
