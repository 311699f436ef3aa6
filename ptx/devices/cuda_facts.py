"""Owns what a CUDA driver says about its GPUs, and which row of `targets.toml` a GPU is.

No context is made. The bindings are passed in; it must not know kernels or buffers. Contract: the
device attributes of the CUDA driver API. `ptx/devices/nvml.py` tells all GPUs of the machine, this
file those that CUDA computes on, in CUDA's order: `pci` is what both have in common.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptx.device import DeviceError
from ptx.devices.cuda_context import call
from ptx.op import Target

TEXT_BYTES = 256


@dataclass(frozen=True)
class CudaFacts:
    """One GPU. Clocks are the highest that the card allows, not those of the moment."""

    ordinal: int
    name: str
    arch: str
    cuda: str
    pci: str
    total_bytes: int
    n_multiprocessors: int
    sm_clock_mhz: int
    memory_clock_mhz: int
    memory_bus_bits: int
    l2_bytes: int
    max_shared_bytes: int

    @property
    def description(self) -> str:
        """For people: `NVIDIA H200, sm_90, 140.4 GiB, CUDA 13.0`."""
        return f"{self.name}, {self.arch}, {self.total_bytes / 2**30:.1f} GiB, CUDA {self.cuda}"


def read_all(bindings: Any) -> tuple[CudaFacts, ...]:
    """Facts of every GPU that the driver shows to this process; DeviceError if it answers none."""
    call(bindings, "cuInit", 0)
    return tuple(
        read_facts(bindings, ordinal) for ordinal in range(call(bindings, "cuDeviceGetCount"))
    )


def read_facts(bindings: Any, ordinal: int) -> CudaFacts:
    """Facts of the GPU `ordinal` after `cuInit`; DeviceError if there is no such one."""
    device = call(bindings, "cuDeviceGet", ordinal)
    names = bindings.CUdevice_attribute

    def attribute(name: str) -> int:
        which = getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(bindings, "cuDeviceGetAttribute", which, device))

    version = int(call(bindings, "cuDriverGetVersion"))
    major = attribute("COMPUTE_CAPABILITY_MAJOR")
    minor = attribute("COMPUTE_CAPABILITY_MINOR")
    return CudaFacts(
        ordinal=ordinal,
        name=_text(call(bindings, "cuDeviceGetName", TEXT_BYTES, device)),
        arch=f"sm_{major}{minor}",
        cuda=f"{version // 1000}.{version % 1000 // 10}",
        pci=_text(call(bindings, "cuDeviceGetPCIBusId", TEXT_BYTES, device)).lower(),
        total_bytes=int(call(bindings, "cuDeviceTotalMem", device)),
        n_multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        sm_clock_mhz=attribute("CLOCK_RATE") // 1000,
        memory_clock_mhz=attribute("MEMORY_CLOCK_RATE") // 1000,
        memory_bus_bits=attribute("GLOBAL_MEMORY_BUS_WIDTH"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        max_shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("ascii", "replace")


def target_for(arch: str, targets: Mapping[str, Target]) -> Target:
    """The row for a GPU: its own "a" row if there is one, else the highest that runs on it."""
    own = [row for row in targets.values() if row.arch == f"{arch}a"]
    general = [
        row for row in targets.values()
        if re.fullmatch(r"sm_\d+", row.arch) and _number(row.arch) <= _number(arch)
    ]
    if not own and not general:
        oldest = min((row.arch for row in targets.values()), key=_number)
        raise DeviceError(f"{arch}: kernels are written for {oldest} and newer")
    return (own or [max(general, key=lambda row: _number(row.arch))])[0]


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))
