"""Owns the `emulator` device: the project's PTX run by `ptx/emulator`, on a machine without a GPU.

It must not know ops or models. The protocol is `ptx/device.py`. A launch returns when it is done.
"""

import os
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from ptx.device import DeviceError, MemoryInfo
from ptx.devices.compiled import CompiledDevice, Value
from ptx.devices.compiled import Output as Extent
from ptx.devices.tensor_maps import Tiled
from ptx.emulator.errors import Fault
from ptx.emulator.machine import Machine
from ptx.emulator.memory import Memory
from ptx.emulator.outputs import Output
from ptx.emulator.parse import parse
from ptx.emulator.syntax import Module
from ptx.emulator.tensor_maps import encoded
from ptx.inventory import targets
from ptx.numerics import DTYPES, Array
from ptx.op import Launch

TOTAL_BYTES = 8 << 30


# Devices of several seeds run the same texts one after the other.
_parsed = lru_cache(maxsize=16)(parse)


class Loaded(NamedTuple):
    """A parsed module, its entry, and the source's name for messages."""

    module: Module
    entry: str
    shown: str


class EmulatorDevice(CompiledDevice):
    """Runs the kernels that a GPU of `target`, a row of targets.toml, would get.

    `seed` orders warps and atomics: one kernel under several seeds must give the same bits.
    """

    name = "emulator"
    kind: Literal["cpu", "gpu"] = "gpu"

    def __init__(
        self, target: str = "sm_90a", seed: int = 0, sanitise: bool = True, max_errors: int = 1
    ) -> None:
        super().__init__(targets()[target])
        self.memory = Memory()
        self.machine = Machine(self.memory, self.target.arch, seed, sanitise, max_errors)
        self.description = f"PTX emulator of {self.target.arch}, {os.cpu_count()} threads"

    def memory_info(self) -> MemoryInfo:
        """Free and total bytes of an invented card."""
        return MemoryInfo(max(0, TOTAL_BYTES - self.memory.n_bytes), TOTAL_BYTES)

    def synchronize(self) -> None:
        """Nothing runs; a launch after this one finds nothing unfinished either."""
        self.machine.settle()

    def _load(self, text: str, entry: str, shown: str) -> Loaded:
        return Loaded(_parsed(text), entry, shown)

    def _run(
        self, kernel: Loaded, launch: Launch, values: list[Value], outputs: list[Extent],
        name: str,
    ) -> None:
        """EmulatorError says what the kernel did wrong, and where."""
        extents = [Output(*extent) for extent in outputs]
        self.machine.launch(
            kernel.module, kernel.entry, launch.grid, launch.block, launch.shared_bytes, values,
            extents, launch.programmatic,
        )

    def _encode(self, address: int, tiled: Tiled) -> bytes:
        n_bytes = DTYPES[tiled.dtype].itemsize
        return encoded(address, n_bytes, tiled.shape, tiled.box, tiled.swizzle)

    def _allocate(self, n_bytes: int, name: str) -> int:
        free_bytes = TOTAL_BYTES - self.memory.n_bytes
        if n_bytes > free_bytes:
            raise DeviceError(f"{name}: {n_bytes} bytes, {free_bytes} free")
        return self.memory.allocate(n_bytes, name)

    def _free(self, address: int) -> None:
        self.memory.free(address)

    def _write(self, address: int, cells: Array) -> None:
        self._checked(self.memory.write, address, cells)

    def _read(self, address: int, cells: Array) -> None:
        self._checked(self.memory.read, address, cells)

    def _move(self, source: int, target: int, n_bytes: int) -> None:
        self._checked(self.memory.move, source, target, n_bytes)

    def _checked(self, call: Any, *arguments: Any) -> None:
        # Copies wait for every launch before them.
        self.machine.settle()
        try:
            call(*arguments)
        except Fault as fault:
            raise DeviceError(f"{fault.message} (address {fault.address:#x})") from None
