"""Owns making tensor maps by the CUDA driver: cuTensorMapEncodeTiled.

The bindings come with the context; it must not know ops or buffers. The function is called past
the bindings' wrapper: the header asks for 64-byte alignment of the object, and the wrapper keeps it
in a Python object, which has 16 (KNOWLEDGE/pitfalls/a-tensor-map-object-has-64-byte-alignment.md).
"""

import ctypes
from math import prod
from typing import Any

from ptx.device import DeviceError
from ptx.devices.cuda_context import Context
from ptx.devices.tensor_maps import MAP_BYTES, Tiled
from ptx.numerics import DTYPES

NAME = b"cuTensorMapEncodeTiled"
# The first CUDA that has it.
SINCE = 12_000
ALIGNMENT = 64
KINDS = {
    "u8": "UINT8", "i8": "UINT8", "e4m3": "UINT8", "u32": "UINT32", "i32": "INT32", "i64": "INT64",
    "f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64",
}
SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
U32, U64 = ctypes.c_uint32, ctypes.c_uint64
# Map, dtype, rank, address, lengths, strides, box, steps, interleave, swizzle, promotion, fill.
SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, U32, ctypes.c_void_p, ctypes.POINTER(U64),
    ctypes.POINTER(U64), ctypes.POINTER(U32), ctypes.POINTER(U32), ctypes.c_int, ctypes.c_int,
    ctypes.c_int, ctypes.c_int,
)


class Encoder:
    """The driver's function, looked up when the first map is asked for."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._function: Any = None

    def encode(self, address: int, tiled: Tiled) -> bytes:
        """The 128 bytes; DeviceError when the driver lacks the function or refuses the map."""
        names, rank = self._context.bindings, len(tiled.shape)
        kind = KINDS[tiled.dtype]
        n_bytes = DTYPES[tiled.dtype].itemsize
        strides = [prod(tiled.shape[at:]) * n_bytes for at in range(1, rank)]
        room = ctypes.create_string_buffer(MAP_BYTES + ALIGNMENT)
        place = -(-ctypes.addressof(room) // ALIGNMENT) * ALIGNMENT
        # The innermost axis comes first; its stride is that of the cells.
        code = self._found()(
            place,
            int(getattr(names.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}")),
            rank,
            address,
            (U64 * rank)(*tiled.shape[::-1]),
            (U64 * max(1, rank - 1))(*strides[::-1]),
            (U32 * rank)(*tiled.box[::-1]),
            (U32 * rank)(*[1] * rank),
            int(names.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(getattr(names.CUtensorMapSwizzle,
                        f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[tiled.swizzle]}")),
            int(names.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
            int(names.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )
        if code:
            failed = self._context.failure(NAME.decode(), names.CUresult(code))
            raise DeviceError(f"{failed}; {tiled} at 0x{address:x}")
        return ctypes.string_at(place, MAP_BYTES)

    def _found(self) -> Any:
        if self._function is None:
            found, _ = self._context.call("cuGetProcAddress", NAME, SINCE, 0)
            if not found:
                raise DeviceError(f"{self._context.name}: the driver has no {NAME.decode()}")
            self._function = SIGNATURE(int(found))
        return self._function
