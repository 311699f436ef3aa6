"""Owns reading weights ahead of their use: what is stored is opened, and its digest compared, by
threads that are a few weights in front.

Hashing lets other threads run, so that on several cores a load takes the time of the copies alone.
It must not know devices nor forms.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from engine.records import Stored, Weight

THREADS, WINDOW = 8, 16


class Ahead(Mapping[str, Weight]):
    """The same weights, those that are stored in a form of their own being read ahead in order.

    A context manager: leaving it waits for what is being read. An error of a weight is raised
    where that weight is used, not before.
    """

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        """Begin with the first WINDOW of them."""
        self._weights = weights
        self._pool = ThreadPoolExecutor(THREADS, "weights-ahead")
        self._waiting = iter([name for name, w in weights.items() if w.load_stored])
        self._read: dict[str, Future[Stored]] = {}
        for _ in range(WINDOW):
            self._begin_next()

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *error: Any) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __getitem__(self, name: str) -> Weight:
        weight = self._weights[name]
        if name not in self._read:
            return weight
        return replace(weight, load_stored=lambda: self._taken(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def _begin_next(self) -> None:
        name = next(self._waiting, None)
        if name is not None:
            self._read[name] = self._pool.submit(self._weights[name].stored)

    def _taken(self, name: str) -> Stored:
        """What was read, which is let go of; the next one begins."""
        found = self._read.pop(name).result()
        self._begin_next()
        return found
