"""Owns the progress bar of long commands, on standard error."""

import sys

BAR_COLUMNS = 40


class Bar:
    """A bar that rewrites its own line, once for each per mille, and in a file once for each tenth.

    A context manager: the line is ended, also after a failure, so that what is said next begins its
    own.
    """

    def __init__(self) -> None:
        """Nothing is shown before the first `show`."""
        self._shown = -1
        self._steps = 1000 if sys.stderr.isatty() else 10

    def show(self, done: int, total: int) -> None:
        """Bytes done and in all."""
        step = self._steps * done // max(total, 1)
        if step == self._shown:
            return
        self._shown = step
        filled = BAR_COLUMNS * step // self._steps
        bar = "#" * filled + "." * (BAR_COLUMNS - filled)
        print(f"\r[{bar}] {done / 1e6:.0f} of {total / 1e6:.0f} MB", end="", file=sys.stderr)

    def __enter__(self) -> "Bar":
        """The bar itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """End the line, if one was begun."""
        if self._shown >= 0:
            print(file=sys.stderr)
