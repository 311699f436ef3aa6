"""Owns where matrix elements live in the registers of a warp, and decoding them.

It must not know instruction syntax. Contract: the PTX ISA's fragments for mma. All shapes m16n8kK
follow one rule: a register holds neighbours along K; four lanes side by side cover 128 bits of K.
"""

from functools import cache

import numpy as np

from ptx.emulator.formats import GRIDS, small_values, widen
from ptx.numerics import Array

ROWS, COLUMNS, LANES = 16, 8, 32
BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "e2m1": 4,
    "s4": 4, "u4": 4,
}
# Where small floats lie in a byte of their own: shift and mask.
IN_BYTE = {"e2m1": (2, 15), "e3m2": (0, 63), "e2m3": (0, 63), "e4m3": (0, 255), "e5m2": (0, 255)}
Places = tuple[Array, Array]


@cache
def a_places(n_bits: int, depth: int) -> Places:
    """Row and k of each element [lane, register, element] of A."""
    lane, register, element = _indices(n_bits, depth, 2)
    per = 32 // n_bits
    row = lane // 4 + 8 * (register & 1)
    k = (register >> 1) * 4 * per + per * (lane % 4) + element
    return row, k


@cache
def b_places(n_bits: int, depth: int) -> Places:
    """k and column of each element [lane, register, element] of B."""
    lane, register, element = _indices(n_bits, depth, 1)
    per = 32 // n_bits
    return register * 4 * per + per * (lane % 4) + element, lane // 4 + 0 * element + 0 * register


@cache
def c_places() -> Places:
    """Row and column of the four elements [lane, element] of C and D."""
    lane, element = np.indices((LANES, 4))
    return lane // 4 + 8 * (element >> 1), 2 * (lane % 4) + (element & 1)


def n_registers(n_bits: int, depth: int) -> int:
    """Registers of B; A has twice as many."""
    return depth * n_bits // 128


def _indices(n_bits: int, depth: int, factor: int) -> tuple[Array, Array, Array]:
    shape = (LANES, factor * n_registers(n_bits, depth), 32 // n_bits)
    lane, register, element = np.indices(shape)
    return lane, register, element


def elements(words: Array, kind: str, padded: bool = False) -> Array:
    """Registers [..., r] uint32 to values [..., r, elements], float64 or int64.

    `padded` floats have a byte each; what else is in it does not count.
    """
    n_bits = 8 if padded else BITS[kind]
    words = np.ascontiguousarray(words)
    if n_bits == 32:
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)[..., None]
    if n_bits == 16:
        return widen(words[..., None].view(np.uint16), kind)
    raw = words[..., None].view(np.uint8)
    if padded:
        shift, mask = IN_BYTE[kind]
        return np.asarray(small_values(kind)[(raw >> shift) & mask])
    if n_bits == 4:
        raw = np.stack([raw & 15, raw >> 4], axis=-1).reshape(*raw.shape[:-1], 8)
    if kind in GRIDS:
        return np.asarray(small_values(kind)[raw])
    wide = raw.astype(np.int64)
    if kind[0] == "s":
        half = 1 << (n_bits - 1)
        wide = (wide ^ half) - half
    return wide


def matrix(values: Array, places: Places, shape: tuple[int, int]) -> Array:
    """Elements [warps, lanes, ...] put at their places: [warps, rows, columns]."""
    out = np.zeros((len(values), *shape), values.dtype)
    out[:, places[0], places[1]] = values
    return out
