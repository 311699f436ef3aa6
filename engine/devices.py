"""Owns which devices this process computes on, as the engine and the seam see them.

A device is made once, when it is first used. The vendor's side of it is in `ptx/devices/`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import cast

from engine.errors import InvalidArgument, RuntimeFailure
from ptx.device import Device, DeviceError, MemoryInfo
from ptx.devices import cuda
from ptx.devices.blas import limit_threads
from ptx.devices.host import HostDevice

THREADS_VARIABLE = "MESH_SPECIALIZE_THREADS"
# The emulator is for judging kernels; it is offered only where somebody asks for it.
EMULATOR_VARIABLE = "MESH_SPECIALIZE_EMULATOR"
# What command lines call the first device of a kind.
DEVICE_NAMES = {"host": "CPU", "cuda": "CUDA0", "emulator": "EMULATOR"}
# The host knows its own processor by two names.
ALIASES = {"CPU0": "CPU"}


@dataclass(frozen=True)
class DeviceEntry:
    """One row of the inventory: the name that selects it, what it is, and how it is made.

    `kind` is the device's own name (`host`, `cuda`, `emulator`), known without making it; `arch`
    that of a card, `sm_90`.
    """

    name: str
    description: str
    kind: str
    make: Callable[[], Device]
    arch: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a card."""
        return bool(self.arch)

    @property
    def device(self) -> Device:
        """The device itself; RuntimeFailure when it cannot be opened."""
        return _opened(self.name)

    def memory_info(self) -> MemoryInfo:
        """Free and total bytes; none of either on a device that is lost or cannot be opened."""
        try:
            return self.device.memory_info()
        except (DeviceError, RuntimeFailure):
            return MemoryInfo(0, 0)


@lru_cache(maxsize=1)
def inventory() -> tuple[DeviceEntry, ...]:
    """All devices, in the order the host sees them."""
    return (_host_entry(), *_cuda_entries(), *_emulator_entries())


@lru_cache(maxsize=16)
def _opened(name: str) -> Device:
    entry = next(entry for entry in inventory() if entry.name == name)
    try:
        return entry.make()
    except DeviceError as error:
        raise RuntimeFailure(f"device {name}: {error}") from None


def _host_entry() -> DeviceEntry:
    host = HostDevice()
    text = f"{host.description}, float32, {_limit_blas()}"
    return DeviceEntry("CPU", text, host.name, lambda: host)


def _cuda_entries() -> Iterator[DeviceEntry]:
    found = cuda.available()
    for facts in () if isinstance(found, str) else found:
        make = partial(_cuda_device, facts.ordinal)
        yield DeviceEntry(f"CUDA{facts.ordinal}", facts.description, "cuda", make, facts.arch)


def _cuda_device(ordinal: int) -> Device:
    # Its buffers are its own type, opaque to everyone else.
    return cast(Device, cuda.CudaDevice(ordinal))


def _emulator_entries() -> Iterator[DeviceEntry]:
    if os.environ.get(EMULATOR_VARIABLE):
        text = "PTX emulator with its sanitiser"
        yield DeviceEntry("EMULATOR", text, "emulator", _emulator_device)


def _emulator_device() -> Device:
    # Decoding PTX is for judging kernels: nobody else pays for the import.
    from ptx.devices.emulator import EmulatorDevice

    return cast(Device, EmulatorDevice())


def find(name: str | None) -> DeviceEntry:
    """The device of a name, the first one for None; InvalidArgument naming those present."""
    if name is None:
        return inventory()[0]
    wanted = ALIASES.get(name, name)
    for entry in inventory():
        if entry.name == wanted:
            return entry
    present = ", ".join(entry.name for entry in inventory())
    raise InvalidArgument(f"unknown selected backend device: {name}; present: {present}")


def _limit_blas() -> str:
    """Give numpy's BLAS one thread unless the environment says otherwise.

    Its threads spin while they wait: beside any other load on the cores a step then takes 30 times
    as long, alone two threads save a third: KNOWLEDGE/pitfalls/blas-threads-stall-on-busy-cores.md.
    """
    text = os.environ.get(THREADS_VARIABLE, "1")
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise InvalidArgument(f"{THREADS_VARIABLE}: {text!r} is not a count from 1 to 1024")
    return f"BLAS threads: {text if limit_threads(int(text)) else 'its own choice'}"
