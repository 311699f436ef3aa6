"""Owns the captured graphs of passes of few rows: one for each shape of a pass, made when it first
comes.

A graph reads its numbers from buffers at fixed places, so one serves every session. Devices that
cannot capture run the launches as they are. It must not know steps.
"""

from collections.abc import Callable
from typing import Any

# Shapes are rows, sequences and rows that want logits of a small pass, and its buffer of logits;
# decoding batches and verifying have 62 of them.
MAX_GRAPHS = 96


class Graphs:
    """Graphs by shape, where the device `can`. The first pass of a shape runs eagerly: it may load
    kernels, which cannot be done while a graph is recorded."""

    def __init__(self, device: Any) -> None:
        """Graphs of one device."""
        self._device = device
        self.can = hasattr(device, "capture")
        self._seen: set[tuple[int, ...]] = set()
        self._graphs: dict[tuple[int, ...], Any] = {}

    def run(self, shape: tuple[int, ...], launch: Callable[[], None]) -> None:
        """Run the launches of a pass of this shape."""
        if not self.can or shape not in self._seen:
            self._seen.add(shape)
            launch()
            return
        graph = self._graphs.get(shape)
        if graph is None:
            if len(self._graphs) >= MAX_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            with self._device.capture(f"pass of {shape[0]} rows") as graph:
                launch()
            self._graphs[shape] = graph
        graph.replay()
