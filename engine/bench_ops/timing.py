"""Owns how launches are timed on a card: captured, repeated until they are long, replayed, sorted.

It must not know ops. The launches of a graph run back to back, so a kernel that may start before
the one ahead has ended (programmatic dependent launch) does so here as it does in a model.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Launch = Callable[[], None]


@dataclass(frozen=True)
class Effort:
    """How long to measure: replays at most, milliseconds of a graph, seconds for one figure."""

    n_replays: int
    graph_ms: float
    seconds: float


FULL, QUICK = Effort(21, 4.0, 2.0), Effort(7, 1.0, 0.5)
# A start costs a graph some microseconds once, so a graph holds many launches, but not too many.
MAX_LAUNCHES = 1024
MIN_REPLAYS = 3
# The clock rises within the first milliseconds of work.
WARM_MS = 10.0


@dataclass(frozen=True)
class Spread:
    """Microseconds of one launch: the least, the quartiles, and of how many replays."""

    median: float
    least: float
    low: float
    high: float
    n_replays: int
    n_launches: int


def spread(samples: Sequence[float], n_launches: int) -> Spread:
    """Of milliseconds of whole replays, at least one, each of `n_launches` launches."""
    each = [1e3 * sample / n_launches for sample in samples]
    low, median, high = (
        statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
    )
    return Spread(median, min(each), low, high, len(each), n_launches)


def time_launches(device: Any, launches: Sequence[Launch], effort: Effort) -> Spread:
    """Microseconds of one of `launches`, which are run by turns; at least one.

    Where a few would take longer than `effort.seconds`, the first alone is run, without a graph.
    """
    launches[0]()
    first_ms, budget_ms = milliseconds(device, launches[0]), 1e3 * effort.seconds
    if first_ms * MIN_REPLAYS > budget_ms:
        samples = [first_ms]
        while len(samples) < MIN_REPLAYS and sum(samples) < budget_ms:
            samples.append(milliseconds(device, launches[0]))
        return spread(samples, 1)
    turns = list(launches[: int(budget_ms / MIN_REPLAYS / max(first_ms, 1e-3))])
    for launch in turns[1:]:
        launch()
    graph = captured(device, turns)
    graph.replay()
    once_ms = milliseconds(device, graph.replay)
    n_rounds = min(int(effort.graph_ms / max(once_ms, 1e-3)), MAX_LAUNCHES // len(turns))
    if n_rounds > 1:
        turns = turns * n_rounds
        graph = captured(device, turns)
    return time_replays(device, graph, len(turns), effort)


def time_replays(device: Any, graph: Any, n_launches: int, effort: Effort) -> Spread:
    """The same for a graph of `n_launches`."""
    spent = 0.0
    while spent < WARM_MS:
        spent += max(milliseconds(device, graph.replay), 1e-3)
    samples: list[float] = []
    while len(samples) < effort.n_replays and (
        len(samples) < MIN_REPLAYS or sum(samples) < 1e3 * effort.seconds
    ):
        samples.append(milliseconds(device, graph.replay))
    return spread(samples, n_launches)


def captured(device: Any, launches: Sequence[Launch]) -> Any:
    """A graph of launches in their order."""
    with device.capture("benchmark") as graph:
        for launch in launches:
            launch()
    return graph


def milliseconds(device: Any, call: Launch) -> float:
    """Between two events around a call."""
    start, end = device.event(), device.event()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(end.milliseconds_since(start))
