"""Owns holding a lock file, against other processes and against other threads of this one.

It must not know what is guarded. The file is never removed: who waits has it open already, and
would otherwise hold the lock of a file that nobody else can see.
"""

import contextlib
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_POLL_SECONDS = 0.05
# On some network file systems flock succeeds for everybody; threads of one process are still safe.
_THREADS: dict[Path, threading.Lock] = {}
_THREADS_GUARD = threading.Lock()


@contextlib.contextmanager
def held(
    path: Path, *, seconds: float, ask: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold the lock at `path` for the block; `ask` is called while waiting and may raise.

    TimeoutError after `seconds` of waiting; OSError when the file cannot be made or is none. The
    lock ends with the process, also when that is killed.
    """
    deadline = time.monotonic() + seconds
    with _THREADS_GUARD:
        thread_lock = _THREADS.setdefault(path, threading.Lock())
    _wait(lambda: thread_lock.acquire(blocking=False), deadline, ask)
    try:
        descriptor = os.open(path, _FLAGS, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(0, "the lock file is not a regular file")
            _wait(lambda: _try(descriptor), deadline, ask)
            yield
        finally:
            os.close(descriptor)
    finally:
        thread_lock.release()


def _wait(take: Callable[[], bool], deadline: float, ask: Callable[[], None]) -> None:
    while not take():
        ask()
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(_POLL_SECONDS)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
