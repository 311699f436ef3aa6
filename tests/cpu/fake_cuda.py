"""Owns a stand-in for the module `cuda.bindings.driver`: one card in main memory, for tests alone.

Long because it answers every function that the device calls.

It keeps the driver's rules that the device leans on: a call needs the primary context current on
its thread, a stream that captures runs nothing, a fault stays until the process ends, and what was
made must be given back. A kernel is a Python function of its parameters, named like its entry.
"""

import ctypes
import re
import threading
from collections import Counter
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

RESULTS = {
    "CUDA_SUCCESS": 0, "CUDA_ERROR_INVALID_VALUE": 1, "CUDA_ERROR_OUT_OF_MEMORY": 2,
    "CUDA_ERROR_DEINITIALIZED": 4, "CUDA_ERROR_NO_DEVICE": 100, "CUDA_ERROR_INVALID_DEVICE": 101,
    "CUDA_ERROR_INVALID_CONTEXT": 201, "CUDA_ERROR_ECC_UNCORRECTABLE": 214,
    "CUDA_ERROR_INVALID_PTX": 218, "CUDA_ERROR_ILLEGAL_STATE": 401, "CUDA_ERROR_NOT_FOUND": 500,
    "CUDA_ERROR_ILLEGAL_ADDRESS": 700, "CUDA_ERROR_LAUNCH_FAILED": 719,
    "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED": 901, "CUDA_ERROR_UNKNOWN": 999,
}
CUresult = IntEnum("CUresult", RESULTS)
OK = CUresult.CUDA_SUCCESS
ATTRIBUTES = {
    "CLOCK_RATE": 1_980_000, "MEMORY_CLOCK_RATE": 3_201_000, "GLOBAL_MEMORY_BUS_WIDTH": 6144,
    "MULTIPROCESSOR_COUNT": 132, "L2_CACHE_SIZE": 62_914_560,
    "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448,
}
FUNCTION = {"NUM_REGS": 32, "LOCAL_SIZE_BYTES": 0, "SHARED_SIZE_BYTES": 1024,
            "MAX_THREADS_PER_BLOCK": 512}
# Map, dtype, rank, address, lengths, strides, box, steps, interleave, swizzle, promotion, fill.
TENSOR_MAP_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64,
    *[ctypes.POINTER(ctypes.c_uint64)] * 2, *[ctypes.POINTER(ctypes.c_uint32)] * 2,
    *[ctypes.c_int] * 4,
)
TYPES = {"u64": ctypes.c_uint64, "u32": ctypes.c_uint32, "f32": ctypes.c_float,
         "f64": ctypes.c_double, "s32": ctypes.c_int32, "b8": ctypes.c_char * 128}
# What works without a context, or manages contexts.
FREE = {"cuInit", "cuDeviceGet", "cuDeviceGetCount", "cuDriverGetVersion", "cuDeviceGetName",
        "cuDeviceGetPCIBusId", "cuDeviceTotalMem", "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuCtxPushCurrent",
        "cuCtxPopCurrent"}


def _names(prefix: str, names: Any) -> Any:
    return IntEnum(prefix, [f"{prefix}{name}" for name in names])


class FakeCuda:
    """The module. `kernels` run by entry name; `fail[function] = result name` injects errors."""

    CUresult = CUresult
    CUdevice_attribute = _names("CU_DEVICE_ATTRIBUTE_", ATTRIBUTES)
    CUfunction_attribute = _names("CU_FUNC_ATTRIBUTE_", [*FUNCTION,
                                                         "MAX_DYNAMIC_SHARED_SIZE_BYTES"])
    CUjit_option = _names("CU_JIT_", ["ERROR_LOG_BUFFER", "ERROR_LOG_BUFFER_SIZE_BYTES"])
    CUstreamCaptureMode = _names("CU_STREAM_CAPTURE_MODE_", ["RELAXED"])
    CUstream_flags = _names("CU_STREAM_", ["NON_BLOCKING"])
    CUevent_flags = _names("CU_EVENT_", ["DEFAULT"])
    CUlaunchAttributeID = _names("CU_LAUNCH_ATTRIBUTE_", ["PROGRAMMATIC_STREAM_SERIALIZATION"])
    CUlaunchConfig = SimpleNamespace
    CUtensorMapDataType = IntEnum("CUtensorMapDataType", {
        f"CU_TENSOR_MAP_DATA_TYPE_{name}": code for name, code in
        {"UINT8": 0, "UINT32": 2, "INT32": 3, "INT64": 5, "FLOAT16": 6, "FLOAT32": 7, "FLOAT64": 8,
         "BFLOAT16": 9}.items()})
    CUtensorMapInterleave = IntEnum("CUtensorMapInterleave", ["CU_TENSOR_MAP_INTERLEAVE_NONE"],
                                    start=0)
    CUtensorMapSwizzle = IntEnum("CUtensorMapSwizzle", [
        f"CU_TENSOR_MAP_SWIZZLE_{name}" for name in ("NONE", "32B", "64B", "128B")], start=0)
    CUtensorMapL2promotion = IntEnum("CUtensorMapL2promotion", [
        f"CU_TENSOR_MAP_L2_PROMOTION_{name}" for name in ("NONE", "L2_64B", "L2_128B", "L2_256B")],
        start=0)
    CUtensorMapFloatOOBfill = IntEnum("CUtensorMapFloatOOBfill",
                                      ["CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"], start=0)

    def __init__(self, total_bytes: int = 1 << 20) -> None:
        self.total_bytes, self.version, self.n_devices = total_bytes, 13_000, 1
        self.attributes = dict(ATTRIBUTES)
        self.kernels: dict[str, Any] = {}
        self.fail: dict[str, str] = {}
        self.log, self.fault = b"", OK
        self.calls: Counter[str] = Counter()
        self.live: Counter[str] = Counter()
        self.launched: list[tuple[Any, ...]] = []
        self.memory: dict[int, Any] = {}
        self.capturing: list[Any] | None = None
        self.thread = threading.local()
        self.maps: list[tuple[Any, ...]] = []
        self.proc = TENSOR_MAP_ENCODE(self._encode)

    def CUlaunchAttribute(self) -> Any:
        return SimpleNamespace(id=None, value=SimpleNamespace())

    def stack(self) -> list[Any]:
        """Contexts of this thread, the current one last."""
        if not hasattr(self.thread, "stack"):
            self.thread.stack = []
        return self.thread.stack

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or not hasattr(type(self), f"_{name}"):
            raise AttributeError(name)

        def checked(*args: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            if name in self.fail:
                code = CUresult[f"CUDA_ERROR_{self.fail[name]}"]
                self.fault = code if code >= 700 and code < 900 else self.fault
                return (code, None)
            if name not in FREE:
                if self.stack()[-1:] != ["primary"]:
                    return (CUresult.CUDA_ERROR_INVALID_CONTEXT, None)
                if self.fault:
                    return (self.fault, None)
            answer = getattr(self, f"_{name}")(*args)
            if isinstance(answer, CUresult):
                return (answer, None) if answer else (answer,)
            return (OK, *answer) if isinstance(answer, tuple) else (OK, answer)

        return checked

    def cuGetErrorString(self, code: Any) -> tuple[Any, bytes]:
        return OK, f"words for {int(code)}".encode()

    # Device and context

    def _cuInit(self, flags: int) -> Any:
        return OK

    def _cuDeviceGetCount(self) -> int:
        return self.n_devices

    def _cuDeviceGet(self, ordinal: int) -> Any:
        known = 0 <= ordinal < self.n_devices
        return f"gpu{ordinal}" if known else CUresult.CUDA_ERROR_INVALID_DEVICE

    def _cuDriverGetVersion(self) -> int:
        return self.version

    def _cuDeviceGetName(self, n_bytes: int, device: Any) -> bytes:
        return b"Card of Paper" + bytes(n_bytes - 13)

    def _cuDeviceGetPCIBusId(self, n_bytes: int, device: Any) -> bytes:
        return b"0000:4F:00.0" + bytes(n_bytes - 12)

    def _cuDeviceTotalMem(self, device: Any) -> int:
        return self.total_bytes

    def _cuDeviceGetAttribute(self, which: Any, device: Any) -> int:
        return self.attributes[which.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def _cuDevicePrimaryCtxRetain(self, device: Any) -> str:
        self.live["context"] += 1
        return "primary"

    def _cuDevicePrimaryCtxRelease(self, device: Any) -> Any:
        self.live["context"] -= 1
        return OK

    def _cuCtxPushCurrent(self, context: Any) -> Any:
        self.stack().append(context)
        return OK

    def _cuCtxPopCurrent(self) -> Any:
        return self.stack().pop() if self.stack() else CUresult.CUDA_ERROR_INVALID_CONTEXT

    # Memory

    def _cuMemGetInfo(self) -> tuple[int, int]:
        used = sum(len(block) - 256 for block in self.memory.values())
        return self.total_bytes - used, self.total_bytes

    def _cuMemAlloc(self, n_bytes: int) -> Any:
        if n_bytes > self._cuMemGetInfo()[0]:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY
        block = ctypes.create_string_buffer(n_bytes + 256)
        address = -(-ctypes.addressof(block) // 256) * 256
        self.memory[address] = block
        return address

    def _cuMemFree(self, address: int) -> Any:
        del self.memory[address]
        return OK

    def _cuMemHostAlloc(self, n_bytes: int, flags: int) -> Any:
        self.live["pinned"] += 1
        return self._cuMemAlloc(n_bytes)

    def _cuMemFreeHost(self, address: int) -> Any:
        self.live["pinned"] -= 1
        return self._cuMemFree(address)

    def _do(self, work: Any) -> Any:
        if self.capturing is None:
            work()
        else:
            self.capturing.append(work)
        return OK

    def _move(self, target: int, source: int, n_bytes: int, stream: Any) -> Any:
        return self._do(lambda: ctypes.memmove(target, source, n_bytes))

    _cuMemcpyHtoDAsync = _cuMemcpyDtoHAsync = _cuMemcpyDtoDAsync = _move

    def _cuMemsetD8Async(self, address: int, byte: int, n_bytes: int, stream: Any) -> Any:
        return self._do(lambda: ctypes.memset(address, byte, n_bytes))

    # Streams, graphs, events

    def _made(self, kind: str) -> str:
        self.live[kind] += 1
        return kind

    def _gone(self, kind: Any) -> Any:
        self.live[kind if isinstance(kind, str) else "graph"] -= 1
        return OK

    _cuStreamDestroy = _cuEventDestroy = _cuGraphDestroy = _cuModuleUnload = _gone

    def _cuStreamCreate(self, flags: int) -> str:
        return self._made("stream")

    def _cuStreamSynchronize(self, stream: Any) -> Any:
        return OK

    def _cuStreamBeginCapture(self, stream: Any, mode: Any) -> Any:
        self.capturing = []
        return OK

    def _cuStreamEndCapture(self, stream: Any) -> Any:
        if self.capturing is None:
            return CUresult.CUDA_ERROR_ILLEGAL_STATE
        self._made("graph")
        recorded, self.capturing = self.capturing, None
        return recorded

    def _cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        self._made("executable")
        return list(graph)

    def _cuGraphExecDestroy(self, graph: Any) -> Any:
        return self._gone("executable")

    def _cuGraphUpload(self, graph: Any, stream: Any) -> Any:
        return OK

    def _cuGraphLaunch(self, graph: Any, stream: Any) -> Any:
        for work in graph:
            work()
        return OK

    def _cuEventCreate(self, flags: int) -> str:
        return self._made("event")

    def _cuEventRecord(self, event: Any, stream: Any) -> Any:
        return OK

    def _cuEventSynchronize(self, event: Any) -> Any:
        return OK

    def _cuEventElapsedTime(self, start: Any, end: Any) -> float:
        return 1.5

    # Kernels

    def _cuModuleLoadDataEx(self, image: bytes, n: int, options: Any, values: Any) -> Any:
        if self.log:
            values[0][: len(self.log)] = self.log
            return CUresult.CUDA_ERROR_INVALID_PTX
        self.text = re.sub(r"//[^\n]*", "", image.rstrip(b"\0").decode())
        return self._made("module")

    def _cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        found = re.search(rf"\.entry {name.decode()}\((.*?)\)", self.text, re.S)
        if not found:
            return CUresult.CUDA_ERROR_NOT_FOUND
        return name.decode(), tuple(re.findall(r"\.param (?:\.align 64 )?\.(\w+)", found[1]))

    # Tensor maps, by the address of a function as a driver gives it

    def _cuGetProcAddress(self, name: bytes, version: int, flags: int) -> tuple[int, str]:
        known = name == b"cuTensorMapEncodeTiled" and version >= 12_000
        address = ctypes.cast(self.proc, ctypes.c_void_p).value or 0
        return (address, "found") if known else (0, "not found")

    def _encode(self, place: int, kind: int, rank: int, address: int, lengths: Any, strides: Any,
                box: Any, steps: Any, *words: int) -> int:
        if place % 64 or address % 16:
            return int(CUresult.CUDA_ERROR_INVALID_VALUE)
        self.maps.append((kind, address, lengths[:rank], strides[: rank - 1], box[:rank],
                          steps[:rank], *words))
        ctypes.memset(place, len(self.maps), 128)
        return 0

    def _cuFuncLoad(self, function: Any) -> Any:
        return OK

    def _cuFuncGetAttribute(self, which: Any, function: Any) -> int:
        return FUNCTION[which.name.removeprefix("CU_FUNC_ATTRIBUTE_")]

    def _cuFuncSetAttribute(self, function: Any, which: Any, value: int) -> Any:
        self.launched.append(("limit", value))
        return OK

    def _cuLaunchKernel(self, function: Any, *rest: Any) -> Any:
        *extents, _, pointers, _ = rest
        return self._launch(function, tuple(extents), pointers, False)

    def _cuLaunchKernelEx(self, config: Any, function: Any, pointers: int, extra: int) -> Any:
        extents = (config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX,
                   config.blockDimY, config.blockDimZ, config.sharedMemBytes)
        attribute, = config.attrs
        return self._launch(function, extents, pointers,
                            bool(attribute.value.programmaticStreamSerializationAllowed))

    def _launch(self, function: Any, extents: Any, pointers: int, programmatic: bool) -> Any:
        name, kinds = function
        slots = (ctypes.c_void_p * len(kinds)).from_address(pointers)
        values = [TYPES[kind].from_address(slot).value
                  for kind, slot in zip(kinds, slots, strict=True)]
        self.launched.append((name, extents, values, programmatic))
        return self._do(lambda: self.kernels.get(name, lambda *_: None)(*values))
