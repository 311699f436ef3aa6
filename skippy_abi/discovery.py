"""Owns the inventory of compute devices that the host sees.

The strings it hands out live for the process, as the host expects.
"""

from typing import Any

from engine.devices import inventory
from engine.errors import InvalidArgument
from skippy_abi import buffers
from skippy_abi.boundary import exported
from skippy_abi.cffi_module import ffi, lib

DEVICE_VERSION = 1

_STRINGS = [
    (ffi.new("char[]", entry.name.encode()), ffi.new("char[]", entry.description.encode()))
    for entry in inventory()
]


@exported
def skippy_backend_device_count(out_count: Any, out_error: Any) -> None:
    buffers.require_out(out_count, ffi.sizeof("size_t"), "out_count")
    buffers.write_value(out_count, "size_t", len(inventory()), "out_count")


@exported
def skippy_backend_device_at(index: int, out_device: Any, out_error: Any) -> None:
    buffers.require_out(out_device, ffi.sizeof("struct skippy_backend_device"), "out_device")
    if index >= len(inventory()):
        raise InvalidArgument(f"index: device {index} of {len(inventory())}")
    entry = inventory()[index]
    memory = entry.memory_info()
    device = ffi.new("struct skippy_backend_device *")
    device.version = DEVICE_VERSION
    device.name, device.description = _STRINGS[index]
    device.memory_free = memory.free_bytes
    device.memory_total = memory.total_bytes
    device.type = (
        lib.SKIPPY_BACKEND_DEVICE_TYPE_GPU if entry.is_gpu else lib.SKIPPY_BACKEND_DEVICE_TYPE_CPU
    )
    buffers.write_struct(out_device, device, "out_device")
