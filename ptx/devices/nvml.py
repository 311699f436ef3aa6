"""Owns what the vendor's management library says about the GPUs of this machine.

No context is made and nothing runs on a GPU; a machine without the library has no GPUs. All GPUs
count, whatever CUDA_VISIBLE_DEVICES says. Contract: the library's C interface, NVML.
"""

import ctypes
from typing import Any, NamedTuple

LIBRARY = "libnvidia-ml.so.1"
OK = 0
TEXT_BYTES = 96


class GpuFacts(NamedTuple):
    """Architecture as in `sm_90`, and all memory of the card in bytes."""

    arch: str
    vram_bytes: int


class Facts(NamedTuple):
    """The GPUs, the driver's version, and the CUDA version that the driver speaks ("12.8")."""

    gpus: tuple[GpuFacts, ...]
    driver: str
    cuda: str


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)
    ]


def read_facts() -> Facts | None:
    """The facts, or None where there is no driver that answers."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
        if nvml.nvmlInit_v2() != OK:
            return None
        try:
            return _read(nvml)
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return None


def _read(nvml: Any) -> Facts | None:
    count, cuda = ctypes.c_uint(), ctypes.c_int()
    driver = ctypes.create_string_buffer(TEXT_BYTES)
    answers = [
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)),
        nvml.nvmlSystemGetDriverVersion(driver, TEXT_BYTES),
        nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda)),
    ]
    if any(answer != OK for answer in answers):
        return None
    gpus = (_gpu(nvml, index) for index in range(count.value))
    return Facts(
        tuple(gpu for gpu in gpus if gpu is not None),
        driver.value.decode("ascii", "replace"),
        f"{cuda.value // 1000}.{cuda.value % 1000 // 10}",
    )


def _gpu(nvml: Any, index: int) -> GpuFacts | None:
    handle, memory = ctypes.c_void_p(), _Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    answers = [
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)),
        nvml.nvmlDeviceGetCudaComputeCapability(
            handle, ctypes.byref(major), ctypes.byref(minor)
        ),
        nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)),
    ]
    if any(answer != OK for answer in answers):
        return None
    return GpuFacts(f"sm_{major.value}{minor.value}", memory.total)
