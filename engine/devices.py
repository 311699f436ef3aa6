"""Owns which devices this process computes on, as the engine and the seam see them.

A device is made once. The vendor's side of it is in `ptx/devices/`.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from ptx.device import Device
from ptx.devices.host import HostDevice


@dataclass(frozen=True)
class DeviceEntry:
    """One row of the inventory: the name that selects it, and what it is."""

    name: str
    description: str
    device: Device


@lru_cache(maxsize=1)
def inventory() -> tuple[DeviceEntry, ...]:
    """All devices, in the order the host sees them."""
    device = HostDevice()
    text = f"{device.description}, {os.cpu_count()} cores, float32"
    # A device's buffers are its own type, opaque to everyone else.
    return (DeviceEntry("CPU", text, cast(Device, device)),)
