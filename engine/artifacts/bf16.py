"""Owns the two exact moves between float32 and BF16 bits, for arrays of any shape.

BF16 is the upper half of a float32, so widening is exact. Rounding is to nearest, ties to even; an
overflow becomes an infinity, a NaN stays a NaN (made quiet), zeros and subnormals keep their sign.
"""

import numpy as np
import numpy.typing as npt

from engine.artifacts import ggml_types, quants

Bits = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]

# The first magnitude that is no finite number.
INFINITY_BITS = 0x7F80
MAGNITUDE_BITS = 0x7FFF


def round_to_bf16(x: Floats) -> Bits:
    """x float32, any shape -> uint16 of the same shape. InvalidArgument for another dtype."""
    encoded = quants.encode(x, ggml_types.BF16)
    return np.frombuffer(encoded, "<u2").reshape(x.shape)


def widen_bf16(bits: Bits) -> Floats:
    """bits uint16, any shape -> the same numbers as float32."""
    out = np.empty(bits.shape, np.float32)
    raw = np.ascontiguousarray(bits).view(np.uint8).reshape(-1)
    quants.decode_into(raw, ggml_types.BF16, out.reshape(-1))
    return out
