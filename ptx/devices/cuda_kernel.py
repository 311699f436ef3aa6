"""Owns how PTX text becomes a kernel that the CUDA driver can start, and how it is started.

The bindings come with the context; it must not know ops or buffers. Arguments are packed in one
step into slots whose addresses never change, because a launch from Python costs microseconds:
eight bytes for a number, and as many as it has for a tensor map. Contract:
cuModuleLoadDataEx, cuLaunchKernel, cuLaunchKernelEx.
"""

import ctypes
import re
import struct
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any

from ptx.device import DeviceError
from ptx.devices.compiled import Value
from ptx.devices.cuda_context import Context, DriverError, Handle
from ptx.devices.launch_checks import axes
from ptx.devices.tensor_maps import MAP_BYTES
from ptx.op import Launch, OpError

LOG_BYTES = 16 * 1024
# A bound, for a caller whose grids never repeat.
MAX_GEOMETRIES = 4096
# Integers go in as 64 bits: the driver reads the low ones that a parameter has, of either sign.
PACKED = {
    "f32": "f4x", "f64": "d", "u32": "q", "s32": "q", "b32": "q", "u64": "q", "b64": "q",
    f"b8[{MAP_BYTES}]": f"{MAP_BYTES}s",
}


@dataclass(eq=False)
class CudaKernel:
    """A loaded kernel; `launches` holds what is known of every geometry it was started with."""

    shown: str
    module: Handle
    function: Any
    n_registers: int
    local_bytes: int
    static_shared_bytes: int
    max_threads: int
    pack: struct.Struct
    slots: ctypes.Array[ctypes.c_char]
    pointers: ctypes.Array[ctypes.c_void_p]
    pointers_address: int
    dynamic_shared_bytes: int = 0
    launches: dict[Launch, "_Geometry"] = field(default_factory=dict)


@dataclass(frozen=True)
class _Geometry:
    """Arguments of cuLaunchKernel, or the configuration of cuLaunchKernelEx."""

    extents: tuple[int, ...]
    config: Any


def load(context: Context, text: str, entry: str, shown: str) -> CudaKernel:
    """Compile `text` and load it whole; DeviceError carries the compiler's log and our lines."""
    module = Handle(context, "cuModuleUnload", _compile(context, text, shown))
    function = context.call("cuModuleGetFunction", module.value, entry.encode())
    # Otherwise the driver loads at the first launch, which may be inside a capture.
    context.call("cuFuncLoad", function)
    names = context.bindings.CUfunction_attribute

    def attribute(name: str) -> int:
        return int(context.call("cuFuncGetAttribute", getattr(names, name), function))

    formats = [PACKED.get(kind) for kind in parameters(text, entry)]
    if None in formats:
        raise DeviceError(f"{shown}: {entry}: parameters are {parameters(text, entry)}, "
                          f"a launch packs {', '.join(PACKED)}")
    pack = struct.Struct("<" + "".join(map(str, formats)))
    slots = ctypes.create_string_buffer(max(pack.size, 1))
    ends = list(accumulate(struct.calcsize(f"<{form}") for form in formats))
    base = ctypes.addressof(slots)
    pointers = (ctypes.c_void_p * len(formats))(*(base + at for at in [0, *ends][: len(formats)]))
    return CudaKernel(
        shown, module, function,
        n_registers=attribute("CU_FUNC_ATTRIBUTE_NUM_REGS"),
        local_bytes=attribute("CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES"),
        static_shared_bytes=attribute("CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES"),
        max_threads=attribute("CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK"),
        pack=pack, slots=slots, pointers=pointers, pointers_address=ctypes.addressof(pointers),
    )


def parameters(text: str, entry: str) -> list[str]:
    """Types of an entry's parameters as PTX writes them, `b8[128]` of an array; none without entry.
    """
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    found = re.search(rf"\.entry\s+{re.escape(entry)}\s*\(([^)]*)\)", bare)
    if found is None:
        return []
    each = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)[^,\[]*(\[\d+\])?", found[1])
    return [kind + length for kind, length in each]


def _compile(context: Context, text: str, shown: str) -> Any:
    names = context.bindings.CUjit_option
    log = bytearray(LOG_BYTES)
    options = {
        names.CU_JIT_ERROR_LOG_BUFFER: log,
        names.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: LOG_BYTES,
    }
    image = text.encode() + b"\0"
    try:
        return context.call(
            "cuModuleLoadDataEx", image, len(options), list(options), list(options.values())
        )
    except DriverError as error:
        said = log.partition(b"\0")[0].decode(errors="replace").strip()
        parts = [f"{shown}: {error}", said or "the compiler left no log", *_cited(said, text)]
        raise DriverError("\n".join(parts), error.code) from None


def _cited(log: str, text: str) -> list[str]:
    """The lines of `text` that a log names, in its order."""
    lines = text.splitlines()
    numbers = dict.fromkeys(int(number) for number in re.findall(r"\bline (\d+)", log))
    return [f"line {n}: {lines[n - 1].strip()}" for n in numbers if 1 <= n <= len(lines)]


def start(
    context: Context, kernel: CudaKernel, launch: Launch, values: list[Value],
    stream: Any, max_shared_bytes: int,
) -> None:
    """Put one launch on `stream`; the values are copied before this returns."""
    geometry = kernel.launches.get(launch)
    if geometry is None:
        geometry = _geometry(context, kernel, launch, stream, max_shared_bytes)
        if len(kernel.launches) >= MAX_GEOMETRIES:
            kernel.launches.clear()
        kernel.launches[launch] = geometry
    try:
        kernel.pack.pack_into(kernel.slots, 0, *values)
    except (struct.error, OverflowError) as error:
        raise OpError(f"{kernel.shown}: arguments {values}: {error}") from None
    if geometry.config is None:
        name = "cuLaunchKernel"
        code = context.bindings.cuLaunchKernel(
            kernel.function, *geometry.extents, stream, kernel.pointers_address, 0
        )[0]
    else:
        name = "cuLaunchKernelEx"
        code = context.bindings.cuLaunchKernelEx(
            geometry.config, kernel.function, kernel.pointers_address, 0
        )[0]
    if code:
        raise context.failure(f"{kernel.shown}: {name}", code)


def _geometry(
    context: Context, kernel: CudaKernel, launch: Launch, stream: Any, max_shared_bytes: int
) -> _Geometry:
    grid, block = axes(launch.grid), axes(launch.block)
    shared = kernel.static_shared_bytes + launch.shared_bytes
    if prod(block) > kernel.max_threads:
        raise OpError(
            f"{kernel.shown}: {prod(block)} threads in a block, at most {kernel.max_threads} fit "
            f"with {kernel.n_registers} registers each"
        )
    if shared > max_shared_bytes:
        raise OpError(
            f"{kernel.shown}: {shared} bytes of shared memory in a block, "
            f"{context.name} has {max_shared_bytes}"
        )
    if launch.shared_bytes > kernel.dynamic_shared_bytes:
        which = context.bindings.CUfunction_attribute
        context.call(
            "cuFuncSetAttribute", kernel.function,
            which.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared_bytes,
        )
        kernel.dynamic_shared_bytes = launch.shared_bytes
    extents = (*grid, *block, launch.shared_bytes)
    if not launch.programmatic:
        return _Geometry(extents, None)
    return _Geometry(extents, _programmatic(context.bindings, extents, stream))


def _programmatic(bindings: Any, extents: tuple[int, ...], stream: Any) -> Any:
    """A launch that may begin while the one before it ends; its kernel waits for that itself."""
    config = bindings.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = extents[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = extents[3:6]
    config.sharedMemBytes = extents[6]
    config.hStream = stream
    attribute = bindings.CUlaunchAttribute()
    attribute.id = (
        bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    )
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.attrs = [attribute]
    config.numAttrs = 1
    return config
