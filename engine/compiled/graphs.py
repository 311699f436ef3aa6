"""Owns the captured graphs of passes of few rows: one for each shape of a pass, made when it first
comes.

A graph reads its numbers from buffers at fixed places, so one serves every session. Devices that
cannot capture run the launches as they are. It must not know steps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

# Shapes are rows, sequences and rows that want logits of a small pass; decoding batches and
# verifying have 31 of them.
MAX_SHAPES = 64


class Graphs:
    """Graphs by shape, where the device `can`. The first pass of a shape runs eagerly: it may load
    kernels, which cannot be done while a graph is recorded."""

    def __init__(self, device: Any) -> None:
        """Graphs of one device."""
        self._device = device
        self.can = hasattr(device, "capture")
        self._seen: set[tuple[int, ...]] = set()
        self._graphs: dict[tuple[int, ...], list[Any]] = {}

    def run(
        self, shape: tuple[int, ...], launch: Callable[[int], None], way: int = 0, n_ways: int = 1
    ) -> None:
        """Run `launch(way)`, a pass of this shape. All ways of a shape are captured at once, so
        that nothing is left to capture once a shape has come twice."""
        graphs = self._graphs.get(shape)
        if graphs is None:
            if not self.can or shape not in self._seen:
                self._seen.add(shape)
                launch(way)
                return
            if len(self._graphs) >= MAX_SHAPES:
                self._graphs.pop(next(iter(self._graphs)))
            graphs = [self._captured(shape, partial(launch, one)) for one in range(n_ways)]
            self._graphs[shape] = graphs
        graphs[way].replay()

    def _captured(self, shape: tuple[int, ...], launch: Callable[[], None]) -> Any:
        with self._device.capture(f"pass of {shape[0]} rows") as graph:
            launch()
        return graph
