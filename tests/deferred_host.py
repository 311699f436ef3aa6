"""Owns a host device that runs nothing before it must, as a card may: launches and asynchronous
copies wait for the next call that waits. What is changed too early then shows in the results. It
captures graphs too: lists of calls that a replay puts in line again."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ptx.device import DeviceError
from ptx.numerics import DTYPES, Array
from ptx.op import Op
from tests.compiled_hybrid import KernelHost

Call = Callable[[], None]


class DeferredGraph:
    """Calls that were recorded once."""

    def __init__(self, device: "DeferredHost") -> None:
        self.calls: list[Call] = []
        self.n_replays = 0
        self._device = device

    def replay(self) -> None:
        """Put the calls in line."""
        self.n_replays += 1
        self._device.waiting.extend(self.calls)


class DeferredEvent:
    """A point in line; nobody comes past it before all in front of it was done."""

    def __init__(self, device: "DeferredHost") -> None:
        self._device = device

    def record(self) -> None:
        """Nothing: whoever waits does all that is in line."""

    def synchronize(self) -> None:
        """Do all that is in line."""
        self._device.synchronize()


class DeferredHost(KernelHost):
    """`KernelHost` whose work is done when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Call] = []
        # Those that somebody still holds: a device lives longer than its models.
        self.graphs: weakref.WeakSet[DeferredGraph] = weakref.WeakSet()
        self.n_waits = 0
        self.loads: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
        self._open: DeferredGraph | None = None
        self._pinned: list[weakref.ref[Array]] = []

    def _put(self, call: Call) -> None:
        (self._open.calls if self._open else self.waiting).append(call)

    def launch(self, op: Op, **args: Any) -> None:
        """Put a launch in line."""
        self._put(lambda: super(DeferredHost, self).launch(op, **args))

    def prepare(self, op: Op, **args: Any) -> None:
        """Remember which kernels were asked for."""
        shapes = tuple(value.shape for value in args.values() if hasattr(value, "shape"))
        self.loads.append((op.name, shapes))

    def copy(self, source: Any, target: Any) -> None:
        """Put a copy in line."""
        self._put(lambda: super(DeferredHost, self).copy(source, target))

    def synchronize(self) -> None:
        """Do all that waits."""
        if self._open:
            raise DeviceError("synchronize: not while a graph is captured")
        self.n_waits += 1
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()

    def upload(self, buffer: Any, array: Array) -> None:
        """Wait, then copy."""
        self.synchronize()
        super().upload(buffer, array)

    def download(self, buffer: Any) -> Array:
        """Wait, then copy."""
        self.synchronize()
        return super().download(buffer)

    def pinned(self, shape: tuple[int, ...], dtype: str, name: str) -> Array:
        """An array for asynchronous copies."""
        made = self.allocate(shape, dtype, name)
        self._pinned = [ref for ref in self._pinned if ref() is not None]
        self._pinned.append(weakref.ref(made))
        return made

    def upload_async(self, buffer: Any, cells: Array) -> None:
        """Put a copy in line; its cells are read when it is done."""
        self._check(buffer, cells)
        self._put(lambda: buffer.__setitem__(..., cells))

    def download_async(self, buffer: Any, cells: Array) -> None:
        """Put a copy in line."""
        self._check(buffer, cells)
        self._put(lambda: cells.__setitem__(..., buffer))

    def _check(self, buffer: Any, cells: Array) -> None:
        pinned = [ref() for ref in self._pinned]
        assert any(cells is one or cells.base is one for one in pinned), "needs pinned cells"
        assert cells.shape == buffer.shape
        assert cells.dtype == buffer.dtype
        assert cells.dtype in DTYPES.values()

    def event(self) -> "DeferredEvent":
        """A point in line."""
        return DeferredEvent(self)

    @contextmanager
    def capture(self, name: str = "graph") -> Iterator[DeferredGraph]:
        """Record the calls of the body."""
        self._open = DeferredGraph(self)
        try:
            yield self._open
            self.graphs.add(self._open)
        finally:
            self._open = None
