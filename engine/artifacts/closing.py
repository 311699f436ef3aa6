"""Owns the `with` of the artifact classes: leaving it closes them, whatever happened inside."""

from typing import Self


class Closing:
    """Something with a `close` that may be called twice."""

    def close(self) -> None:
        """Let go of what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """The object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
