"""Owns what devices that run PTX text share: choice of kernel, rendering, packing, memory.

It must not know vendors nor any op by name: `cuda` and `emulator` are subclasses, which supply the
methods that end this file. The first launch of a signature is checked whole (`launch_checks.py`),
later ones look it up.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ptx.device import DeviceError, MemoryInfo
from ptx.devices.buffer import Allocation, DeviceBuffer
from ptx.devices.launch_checks import checked_dims, checked_launch, checked_place, checked_scalar
from ptx.devices.tensor_maps import Tiled, checked_map, checked_start
from ptx.numerics import DTYPES, Array
from ptx.op import Constant, Dims, Kernel, Launch, Op, Shape, Target, pick
from ptx.template import source_of, text_of

# What a subclass's `_load` gives and its `_run` takes.
Loaded = Any
Output = tuple[int, int, bool]
# What an entry takes: numbers, addresses, the bytes of tensor maps.
Value = int | float | bytes

# Bounds on remembered signatures and tensor maps, for a caller whose shapes never repeat.
MAX_PLANS = 4096
MAX_MAPS = 16_384


@dataclass(frozen=True)
class _Plan:
    """A checked signature: what to run, and where each of the entry's values comes from.

    `values` holds a dimension's length, or None where the caller's argument goes; `maps` are the
    tensor maps that follow, each with its parameter.
    """

    op: Op
    kernel: Loaded
    launch: Launch
    values: tuple[int | None, ...]
    maps: tuple[tuple[str, Tiled], ...]


class CompiledDevice(ABC):
    """Runs the PTX kernels of ops on buffers that are addresses. One thread at a time."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        # Kernels by the digest of their text, and by what that is rendered from.
        self._loaded: dict[str, Loaded] = {}
        self._asked: dict[tuple[str, Path, frozenset[tuple[str, Constant]]], Loaded] = {}
        self._maps: dict[tuple[int, Tiled], bytes] = {}

    # Launches

    def launch(self, op: Op, **args: Any) -> None:
        """Run the op's first fitting kernel; OpError names op, kernel, parameter and numbers."""
        key = (op.name, *[(name, *_signature(value)) for name, value in args.items()])
        plan = self._plans.get(key)
        # Two records may share a name: a test's choice of kernels, beside the op itself.
        if plan is None or plan.op is not op:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._planned(op, args)
        values: list[Value] = []
        outputs: list[Output] = []
        for param, known in zip(op.params, plan.values, strict=True):
            if known is not None:
                values.append(known)
            elif param.shape is None:
                values.append(checked_scalar(op, param, args[param.name]))
            else:
                buffer = checked_place(op, param, args[param.name], self)
                values.append(buffer.address)
                if param.out:
                    outputs.append((buffer.address, buffer.nbytes, not param.partial))
        for name, tiled in plan.maps:
            values.append(self._map(op, name, args[name].address, tiled))
        self._run(plan.kernel, plan.launch, values, outputs, op.name)

    def _planned(self, op: Op, args: dict[str, Any]) -> _Plan:
        dims = checked_dims(op, args)
        kernel = pick(op, self.target, dims)
        launch = checked_launch(op, kernel, dims)
        values = tuple(dims.get(p.name) if p.shape is None else None for p in op.params)
        maps = tuple(checked_map(op, kernel, wish, dims) for wish in kernel.maps(dims))
        return _Plan(op, self._loaded_kernel(op, kernel, dims), launch, values, maps)

    def _map(self, op: Op, name: str, address: int, tiled: Tiled) -> bytes:
        """The tensor map of a buffer at an address, made once."""
        known = self._maps.get((address, tiled))
        if known is None:
            checked_start(op, name, address)
            if len(self._maps) >= MAX_MAPS:
                self._maps.clear()
            known = self._maps[address, tiled] = self._encode(address, tiled)
        return known

    def _loaded_kernel(self, op: Op, kernel: Kernel, dims: Dims) -> Loaded:
        source = source_of(op, kernel)
        # Many dims have one text, and to render it takes longer than to ask for it.
        asked = (op.name, source, frozenset(kernel.constants(dims).items()))
        known = self._asked.get(asked)
        if known is None:
            text = text_of(op, kernel, dims)
            digest = hashlib.sha256(f"{op.name}\0{text}".encode()).hexdigest()
            if digest not in self._loaded:
                shown = f"{source.parent.name}/{source.name}"
                self._loaded[digest] = self._load(text, op.name, shown)
            known = self._asked[asked] = self._loaded[digest]
        return known

    def prepare(self, op: Op, **args: Any) -> None:
        """Load the kernel that a launch with these arguments runs; several threads may at once."""
        self.loaded(op, checked_dims(op, args))

    def loaded(self, op: Op, dims: Dims) -> Loaded:
        """The kernel that `launch` runs for these dims: for tools that ask what it takes."""
        return self._loaded_kernel(op, pick(op, self.target, dims), dims)

    # Memory

    def allocate(self, shape: Shape, dtype: str, name: str) -> DeviceBuffer:
        """A new buffer, content unspecified; DeviceError names it, its bytes and the free ones."""
        if dtype not in DTYPES:
            raise DeviceError(f"{name}: dtype {dtype!r}, known: {', '.join(DTYPES)}")
        if any(length < 0 for length in shape):
            raise DeviceError(f"{name}: shape {list(shape)} has a negative axis")
        n_bytes = prod(shape) * DTYPES[dtype].itemsize
        address = self._allocate(n_bytes, name)
        owner = Allocation(address, n_bytes, self._free)
        return DeviceBuffer(self, address, tuple(shape), dtype, owner)

    def upload(self, buffer: DeviceBuffer, array: Array) -> None:
        """Copy `array`, cast to the buffer's dtype, into a buffer of the same shape.

        bf16 cells are given as their bits, uint16; DeviceError for anything else.
        """
        array = np.asarray(array)
        self._mine("upload", buffer)
        _same("upload", array.shape, buffer.shape)
        if buffer.dtype == "bf16" and array.dtype != np.uint16:
            raise DeviceError(f"upload: bf16 cells are given as uint16 bits, not {array.dtype}")
        with np.errstate(all="ignore"):
            cells = np.ascontiguousarray(array, DTYPES[buffer.dtype])
        if cells.nbytes:
            self._write(buffer.address, cells)

    def download(self, buffer: DeviceBuffer) -> Array:
        """A copy of the buffer's content, once everything before has run."""
        self._mine("download", buffer)
        cells: Array = np.empty(buffer.shape, DTYPES[buffer.dtype])
        if cells.nbytes:
            self._read(buffer.address, cells)
        return cells

    def copy(self, source: DeviceBuffer, target: DeviceBuffer) -> None:
        """Copy between buffers of the same shape and dtype that do not overlap."""
        self._mine("copy", source)
        self._mine("copy", target)
        _same("copy", source.shape, target.shape)
        if source.dtype != target.dtype:
            raise DeviceError(f"copy: source is {source.dtype}, target is {target.dtype}")
        if source.nbytes:
            self._move(source.address, target.address, source.nbytes)

    def _mine(self, call: str, buffer: DeviceBuffer) -> None:
        if not isinstance(buffer, DeviceBuffer):
            raise DeviceError(f"{call}: {type(buffer).__name__} is not a device buffer")
        if buffer.device is not self:
            raise DeviceError(f"{call}: the buffer {list(buffer.shape)} is of another device")

    # What a subclass supplies

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Free and total bytes now."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return once every launch and copy has finished."""

    @abstractmethod
    def _load(self, text: str, entry: str, shown: str) -> Loaded:
        """The kernel `entry` of a module's text; `shown` is the source's name for messages."""

    @abstractmethod
    def _run(
        self,
        kernel: Loaded,
        launch: Launch,
        values: list[Value],
        outputs: list[Output],
        name: str,
    ) -> None:
        """Start a loaded kernel; `outputs` are address and bytes of the buffers it may write,
        and whether it must write all of them."""

    @abstractmethod
    def _encode(self, address: int, tiled: Tiled) -> bytes:
        """The 128 bytes of a tensor map that was checked; DeviceError if the device has none."""

    @abstractmethod
    def _allocate(self, n_bytes: int, name: str) -> int:
        """Address of new memory, a multiple of 256, also for 0 bytes; DeviceError if there is none.
        """

    @abstractmethod
    def _free(self, address: int) -> None:
        """Give memory back; called from a finaliser, perhaps on another thread: raises nothing."""

    @abstractmethod
    def _write(self, address: int, cells: Array) -> None:
        """Copy contiguous `cells`, not empty, to the device; the caller may change them after."""

    @abstractmethod
    def _read(self, address: int, cells: Array) -> None:
        """Fill contiguous `cells`, not empty, from the device, after all that was launched."""

    @abstractmethod
    def _move(self, source: int, target: int, n_bytes: int) -> None:
        """Copy inside the device, in launch order."""


def _signature(value: Any) -> tuple[Any, ...]:
    if type(value) is DeviceBuffer:
        return value.shape, value.dtype
    return (type(value),)


def _same(call: str, found: Shape, expected: Shape) -> None:
    if tuple(found) != tuple(expected):
        raise DeviceError(f"{call}: source is {list(found)}, target is {list(expected)}")
