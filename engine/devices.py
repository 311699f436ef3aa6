"""Owns which devices this process computes on, as the engine and the seam see them.

A device is made once. The vendor's side of it is in `ptx/devices/`.
"""

import os
from dataclasses import dataclass
from functools import lru_cache

from engine.errors import InvalidArgument
from ptx.device import Device
from ptx.devices.blas import limit_threads
from ptx.devices.host import HostDevice

THREADS_VARIABLE = "MESH_SPECIALIZE_THREADS"
# The host knows its own processor by two names.
ALIASES = {"CPU0": "CPU"}


@dataclass(frozen=True)
class DeviceEntry:
    """One row of the inventory: the name that selects it, and what it is."""

    name: str
    description: str
    device: Device


@lru_cache(maxsize=1)
def inventory() -> tuple[DeviceEntry, ...]:
    """All devices, in the order the host sees them."""
    device: Device = HostDevice()
    return (DeviceEntry("CPU", f"{device.description}, float32, {_limit_blas()}", device),)


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
