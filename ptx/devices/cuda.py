"""Owns the `cuda` device: PTX kernels on an NVIDIA GPU, by the driver API alone.

The only file that imports the vendor's bindings, and only when a device is asked for: without them
or without a driver everything else works. It must not know ops or models. The protocol is
`ptx/device.py`. Everything runs in order on one stream of the card's primary context, which is made
current around every call, on whatever thread, and never configured. Long because the protocol and
what goes beyond it share that stream.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, Literal

import numpy as np

from ptx.device import DeviceError, MemoryInfo
from ptx.devices.buffer import DeviceBuffer
from ptx.devices.compiled import CompiledDevice, Output, Value
from ptx.devices.cuda_context import Context, DriverError, Handle
from ptx.devices.cuda_facts import CudaFacts, read_all, read_facts, target_for
from ptx.devices.cuda_graph import Event, Graph
from ptx.devices.cuda_kernel import CudaKernel, load, start
from ptx.devices.cuda_maps import Encoder
from ptx.devices.tensor_maps import Tiled
from ptx.inventory import targets
from ptx.numerics import DTYPES, POISON, Array
from ptx.op import Launch, Op, Shape


def load_bindings() -> Any:
    """The module of the driver API; DeviceError says what is missing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(f"cuda-python is not installed (the `gpu` extra): {error}") from None
    return driver


def available(bindings: Any = None) -> tuple[CudaFacts, ...] | str:
    """Every GPU that CUDA shows to this process, or why there is none. Makes no context."""
    try:
        return read_all(bindings or load_bindings()) or "the CUDA driver shows no GPU"
    except DeviceError as error:
        return str(error)


class CudaDevice(CompiledDevice):
    """One GPU, `ordinal` in CUDA's order. `poison` fills new buffers, as on the host device.

    After a fault of the card or of a kernel every call raises what failed, at once; buffers may
    still be dropped. Memory and context go back once nothing refers to device, buffers and graphs.
    """

    name = "cuda"
    kind: Literal["cpu", "gpu"] = "gpu"

    def __init__(self, ordinal: int = 0, poison: bool = False, bindings: Any = None) -> None:
        self.context = Context(bindings or load_bindings(), ordinal)
        self.facts = read_facts(self.context.bindings, ordinal)
        super().__init__(target_for(self.facts.arch, targets()))
        self.description = self.facts.description
        self._poison = poison
        self._graph: Graph | None = None
        self._encoder = Encoder(self.context)
        # A blocking stream would wait for whatever the process runs on the legacy stream.
        flags = int(self.context.bindings.CUstream_flags.CU_STREAM_NON_BLOCKING)
        with self.context:
            stream = self.context.call("cuStreamCreate", flags)
        self._stream = Handle(self.context, "cuStreamDestroy", stream)

    def memory_info(self) -> MemoryInfo:
        """Free and total bytes of the card now; others on the card count."""
        with self.context as context:
            free_bytes, total_bytes = context.call("cuMemGetInfo")
        return MemoryInfo(int(free_bytes), int(total_bytes))

    def synchronize(self) -> None:
        """Return once every launch and copy has finished; faults of theirs come out here."""
        self._not_captured("synchronize")
        with self.context as context:
            context.synchronize(self._stream.value)

    def launch(self, op: Op, **args: Any) -> None:
        """Run `op`; OpError before it starts names op, kernel, parameter and numbers."""
        if self._graph is not None:
            self._graph.keep(*(value for value in args.values() if type(value) is DeviceBuffer))
        super().launch(op, **args)

    def allocate(self, shape: Shape, dtype: str, name: str) -> DeviceBuffer:
        """A new buffer; DeviceError names it, its bytes and the free ones."""
        buffer = super().allocate(shape, dtype, name)
        if self._poison:
            self.upload(buffer, np.full(shape, POISON[dtype], DTYPES[dtype]))
        return buffer

    # What goes beyond the protocol

    @contextmanager
    def capture(self, name: str = "graph") -> Iterator[Graph]:
        """Record launches and device copies of the body, which do not run, into a graph.

        The graph can be replayed once the body has ended. DeviceError for a call that waits or
        moves pageable memory, and when the driver cannot record something.
        """
        self._not_captured("capture")
        graph = Graph(self.context, self._stream, name)
        graph.begin()
        self._graph = graph
        try:
            yield graph
        except BaseException:
            graph.abandon()
            raise
        finally:
            self._graph = None
        graph.end()

    def event(self) -> Event:
        """A new event of this device's stream."""
        return Event(self.context, self._stream)

    def pinned(self, shape: Shape, dtype: str, name: str) -> Array:
        """An array in page-locked memory, as asynchronous copies need; content unspecified."""
        n_bytes = prod(shape) * DTYPES[dtype].itemsize
        with self.context as context:
            try:
                address = int(context.call("cuMemHostAlloc", max(n_bytes, 1), 0))
            except DriverError as error:
                raise DriverError(f"{name}: {n_bytes} pinned bytes: {error}", error.code) from None
        return np.asarray(_Pinned(Handle(self.context, "cuMemFreeHost", address), shape, dtype))

    def upload_async(self, buffer: DeviceBuffer, cells: Array) -> None:
        """Start a copy from a `pinned` array, which must stand until the device has got there."""
        address = self._pinned_address("upload_async", buffer, cells)
        with self.context as context:
            context.call(
                "cuMemcpyHtoDAsync", buffer.address, address, cells.nbytes, self._stream.value
            )

    def download_async(self, buffer: DeviceBuffer, cells: Array) -> None:
        """Start a copy into a `pinned` array, complete at the next synchronize or event."""
        address = self._pinned_address("download_async", buffer, cells)
        with self.context as context:
            context.call(
                "cuMemcpyDtoHAsync", address, buffer.address, cells.nbytes, self._stream.value
            )

    def clear(self, buffer: DeviceBuffer, byte: int = 0) -> None:
        """Set every byte of a buffer, in launch order."""
        self._mine("clear", buffer)
        self._keep(buffer)
        with self.context as context:
            context.call(
                "cuMemsetD8Async", buffer.address, byte, buffer.nbytes, self._stream.value
            )

    def copy(self, source: DeviceBuffer, target: DeviceBuffer) -> None:
        """Copy between buffers of the same shape and dtype that do not overlap."""
        self._keep(source, target)
        super().copy(source, target)

    # What CompiledDevice asks for

    def _load(self, text: str, entry: str, shown: str) -> CudaKernel:
        with self.context as context:
            return load(context, text, entry, shown)

    def _run(
        self, kernel: CudaKernel, launch: Launch, values: list[Value],
        outputs: list[Output], name: str,
    ) -> None:
        with self.context as context:
            start(
                context, kernel, launch, values, self._stream.value, self.facts.max_shared_bytes
            )
            if self._graph is None:
                context.recent.append(name)

    def _encode(self, address: int, tiled: Tiled) -> bytes:
        with self.context:
            return self._encoder.encode(address, tiled)

    def _allocate(self, n_bytes: int, name: str) -> int:
        with self.context as context:
            try:
                if n_bytes <= self.facts.total_bytes:
                    return int(context.call("cuMemAlloc", max(n_bytes, 1)))
            except DriverError as error:
                if error.code != "CUDA_ERROR_OUT_OF_MEMORY":
                    raise
            memory = self.memory_info()
            raise DeviceError(
                f"{name}: {n_bytes} bytes wanted, {memory.free_bytes} free of "
                f"{memory.total_bytes} on {context.name}"
            )

    def _free(self, address: int) -> None:
        self.context.release("cuMemFree", address)

    def _write(self, address: int, cells: Array) -> None:
        self._not_captured("upload")
        with self.context as context:
            context.call(
                "cuMemcpyHtoDAsync", address, cells.ctypes.data, cells.nbytes, self._stream.value
            )
            # Whether the driver has read pageable cells by now differs between systems.
            context.synchronize(self._stream.value)

    def _read(self, address: int, cells: Array) -> None:
        self._not_captured("download")
        with self.context as context:
            context.call(
                "cuMemcpyDtoHAsync", cells.ctypes.data, address, cells.nbytes, self._stream.value
            )
            context.synchronize(self._stream.value)

    def _move(self, source: int, target: int, n_bytes: int) -> None:
        with self.context as context:
            context.call("cuMemcpyDtoDAsync", target, source, n_bytes, self._stream.value)

    def _keep(self, *things: Any) -> None:
        if self._graph is not None:
            self._graph.keep(*things)

    def _not_captured(self, call: str) -> None:
        if self._graph is not None:
            raise DeviceError(f"{call}: not while {self._graph.name} is captured")

    def _pinned_address(self, call: str, buffer: DeviceBuffer, cells: Array) -> int:
        self._mine(call, buffer)
        if not isinstance(_root(cells), _Pinned) or not cells.flags.c_contiguous:
            raise DeviceError(f"{call}: needs a contiguous array that `pinned` made")
        if cells.shape != buffer.shape or cells.dtype != DTYPES[buffer.dtype]:
            raise DeviceError(
                f"{call}: array is {cells.dtype} {list(cells.shape)}, "
                f"buffer is {buffer.dtype} {list(buffer.shape)}"
            )
        self._keep(buffer, cells)
        return cells.ctypes.data


class _Pinned:
    """Page-locked memory that numpy arrays are views of."""

    def __init__(self, handle: Handle, shape: Shape, dtype: str) -> None:
        self._handle = handle
        self.__array_interface__ = {
            "version": 3, "shape": shape, "typestr": DTYPES[dtype].str,
            "data": (handle.value, False),
        }


def _root(array: Any) -> Any:
    """What owns the memory that an array is a view of."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array
