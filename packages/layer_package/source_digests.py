"""Owns the digests of the source's files, taken by a thread while the package is written.

`hashlib` and reads release the interpreter lock, so on two cores they cost no time of their own,
and the pages that one of the two reads serve the other. It must not know packages.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from packages.layer_package.digests import digest_of
from packages.layer_package.source_model import Source

_POLL_SECONDS = 0.05


class SourceDigests:
    """Digests of all shards in order. A context manager: the thread ends with the block."""

    def __init__(self, source: Source) -> None:
        """Nothing runs before the block is entered."""
        self._source = source
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, "source-digest")
        self._futures: list[Future[str]] = []
        self._n_done = [0] * len(source.shards)

    def __enter__(self) -> "SourceDigests":
        """Begin."""
        self._futures = [self._pool.submit(self._digest, i) for i in range(len(self._n_done))]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Stop and wait, at most for one piece."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def n_bytes_done(self) -> int:
        """Bytes hashed so far."""
        return sum(self._n_done)

    def wait(self, tick: Callable[[], None]) -> list[str]:
        """The digests, 64 hex digits each; `tick` is called while waiting and may raise.

        ArtifactError `artifact_changed` or `artifact_unreadable`.
        """
        digests = []
        for future in self._futures:
            while True:
                tick()
                try:
                    digests.append(future.result(_POLL_SECONDS))
                    break
                except TimeoutError:
                    continue
        tick()
        return digests

    def _digest(self, index: int) -> str:
        shard = self._source.shards[index]

        def progress(done: int, _: int) -> None:
            self._n_done[index] = done

        return digest_of(
            shard.opened, artifact=shard.name, progress=progress, cancelled=self._stop.is_set
        )
