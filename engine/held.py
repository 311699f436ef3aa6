"""Owns what calls on a session are wrapped in: the model's lock, and ways back.

Classes, not generators: every token goes through them, and a generator costs as much as the work
between. They must not know what the calls do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import InvalidArgument, RuntimeFailure

if TYPE_CHECKING:
    from engine.session import Session


class Held:
    """Holds the model's lock for a live session, an `intact` one where state is needed.

    Entering raises InvalidArgument for a freed session, RuntimeFailure for one that needs a reset.
    """

    __slots__ = ("_intact", "_session")

    def __init__(self, session: Session, *, intact: bool) -> None:
        self._session, self._intact = session, intact

    def __enter__(self) -> None:
        session = self._session
        lock = session.model.lock
        lock.acquire()
        if session.closed:
            lock.release()
            raise InvalidArgument("session: was freed by another thread")
        if self._intact and session.needs_reset:
            lock.release()
            raise RuntimeFailure(f"session on lane {session.lane}: needs a reset")

    def __exit__(self, *_: object) -> None:
        self._session.model.lock.release()


class SamplingKept:
    """A call that fails leaves each session's sampler, and how far its draws got, as they were."""

    __slots__ = ("_kept", "_sessions")

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = sessions

    def __enter__(self) -> None:
        self._kept = [session.sampling.current for session in self._sessions]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        for session, current in zip(self._sessions, self._kept, strict=True):
            session.sampling.current = current
            session.sampling.rewind(len(session.history))
            if session.chat:
                session.chat.sampler.rewind(len(session.history))


class Fed:
    """A history that has some tokens more inside. Not a longer copy: at a long context that costs
    more than a choice."""

    __slots__ = ("_fed", "_history", "_n_before")

    def __init__(self, history: list[int], fed: Sequence[int]) -> None:
        self._history, self._fed = history, fed

    def __enter__(self) -> None:
        self._n_before = len(self._history)
        self._history.extend(self._fed)

    def __exit__(self, *_: object) -> None:
        del self._history[self._n_before :]
