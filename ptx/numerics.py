"""Owns T0's number formats by name, and how near two results must be to count as the same.

It must not know ops or devices. Widening a tolerance is a decision, recorded in KNOWLEDGE.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Words of contracts and of PTX -> numpy. numpy has no bf16 nor e4m3: their cells are their bits.
DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "i32": np.dtype(np.int32),
    "u32": np.dtype(np.uint32),
    "i64": np.dtype(np.int64),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "e4m3": np.dtype(np.uint8),
}
# Integer weights share a scale with this many neighbours along K.
GROUP = 128
# What marks memory that nobody wrote: NaN is contagious, and an index this low fails at once.
POISON: dict[str, float | int] = {
    "f32": np.nan,
    "f64": np.nan,
    "f16": np.nan,
    "bf16": 0x7FFF,
    "i32": np.iinfo(np.int32).min,
    "i64": np.iinfo(np.int64).min,
    "u32": np.iinfo(np.uint32).max,
    "i8": np.iinfo(np.int8).min,
    "u8": 0x88,
    "e4m3": 0x7F,
}


@dataclass(frozen=True)
class Tolerance:
    """Two bounds that both must hold, so that neither cancellation nor one bad cell can hide.

    norm  |got - want|_2 <= norm * |want|_2, over the whole array
    cell  max |got - want| <= cell * max |want|
    """

    norm: float
    cell: float


TOLERANCES = {
    # Moves and choices: nothing is computed, so nothing may differ.
    "exact": Tolerance(0.0, 0.0),
    # A handful of float32 roundings for each cell.
    "f32_elementwise": Tolerance(2e-7, 5e-7),
    # Float32 sums in free order; the error grows like the root of the length.
    "f32_reduction": Tolerance(2e-6, 5e-6),
    # Float32 sums inside, and one rounding to bf16 at the end: half a unit is 2^-8 of a cell just
    # above a power of two, and a whole array of such cells is off by as much.
    "bf16_output": Tolerance(3.95e-3, 3.95e-3),
    # Operands of products that are themselves results have been rounded to bf16 before.
    "bf16_products": Tolerance(4e-3, 1e-2),
    # Products of fp8, where some cards keep 13 binary digits within an instruction: four times what
    # KNOWLEDGE/findings/fp8-sums-are-restarted-every-64-of-k.md expects of sums restarted so.
    "fp8_sums": Tolerance(3e-4, 6e-4),
}


def round_to_bf16(x: Array) -> Array:
    """Bits, uint16, of the bf16 nearest to each cell of `x` in float32; ties go to even.

    NaN stays NaN, and what is past the largest bf16 becomes infinity.
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FFF, rounded).astype(np.uint16)


def widen_bf16(bits: Array) -> Array:
    """float32 values of bf16 `bits`, exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def unpack_int4(codes: Array) -> Array:
    """int8 [N, 2J] in -8..7 of the two's complement nibbles of u8 [N, J], the low one first."""
    pairs = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    # 8 .. 15 stand for -8 .. -1.
    return (pairs ^ 8).astype(np.int8) - np.int8(8)


def scale_groups(q: Array, scales: Array, dtype: np.dtype[Any]) -> Array:
    """Weights [N, K] of `dtype`: integers q [N, K] times bf16 bits [N, K / 128], one for 128 of K.

    Exact in float32 for integers of 8 bits.
    """
    wide: Array = np.repeat(widen_bf16(scales).astype(dtype), GROUP, axis=1)
    wide *= q
    return wide


def mismatch(got: Array, want: Array, tolerance: str) -> str | None:
    """None when `got` is `want` within the named tolerance, else a report with one bad cell.

    NaN and infinity always fail, on either side.
    """
    if got.shape != want.shape:
        return f"shape {got.shape}, want {want.shape}"
    difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
    bound = TOLERANCES[tolerance]
    bad = ~(difference <= bound.cell * np.max(np.abs(want)))
    norm = np.linalg.norm(difference)
    if not bad.any() and norm <= bound.norm * np.linalg.norm(want.astype(np.float64)):
        return None
    # The first cell past the cap, or the worst one when only the norm is past its bound.
    cell = np.unravel_index(int(np.argmax(np.where(bad, np.inf, difference))), got.shape)
    return (
        f"{tolerance}: {int(bad.sum())} of {got.size} cells past the cap, norm of the difference "
        f"{norm:.3e}; at {tuple(int(i) for i in cell)} got {got[cell]!r}, want {want[cell]!r}"
    )
