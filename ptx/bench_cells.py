"""Owns the cells that a benchmark's buffers are made of: random ones, and whole tiles of weights.

It must not know ops, only dtypes and tile formats. Never zeros: a card draws less power over them
and keeps a higher clock. Large buffers hold a pattern over and over, copied on the device.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ptx.numerics import DTYPES, GROUP, Array, round_to_bf16

# Cells that are random; a larger buffer repeats them.
N_RANDOM = 1 << 20
TILE_ROWS = 8
Rng = np.random.Generator


def int4_tiles(n_tiles: int, rng: Rng) -> Array:
    """u8 [n, 528]: tiles of 8 rows by 128 codes, two in a byte, then the rows' scales in bf16.

    No nibble is 0 or 8, so that it is a code whether they are two's complement or code + 8.
    """
    nibbles = rng.integers(1, 15, (2, n_tiles, TILE_ROWS * GROUP // 2))
    nibbles += nibbles >= 8
    return _with_scales((nibbles[0] | nibbles[1] << 4).astype(np.uint8), -8, rng)


def int8_tiles(n_tiles: int, rng: Rng) -> Array:
    """u8 [n, 1040]: the same of codes -127 .. 127."""
    codes = rng.integers(-127, 128, (n_tiles, TILE_ROWS * GROUP)).astype(np.int8)
    return _with_scales(codes.view(np.uint8), -12, rng)


def _with_scales(codes: Array, exponent: int, rng: Rng) -> Array:
    """Scales such that a few thousand products of a row with cells near 1 sum to something near 1.
    """
    scales = round_to_bf16(rng.uniform(0.5, 1.5, (len(codes), TILE_ROWS)) * 2.0**exponent)
    return np.concatenate([codes, scales.astype("<u2").view(np.uint8)], axis=1)


# By the bytes of a tile, the last axis of a u8 buffer.
TILES: dict[int, Callable[[int, Rng], Array]] = {528: int4_tiles, 1040: int8_tiles}


def random_cells(dtype: str, n_cells: int, rng: Rng, positive: bool = False) -> Array:
    """Cells that an op takes unless it says otherwise; bf16 as bits, `positive` for scales."""
    if dtype == "bf16":
        cells = rng.uniform(0.5, 1.5, n_cells) if positive else rng.standard_normal(n_cells)
        return round_to_bf16(cells)
    if np.dtype(DTYPES[dtype]).kind == "f":
        return rng.standard_normal(n_cells)
    if dtype == "u8":
        # Two codes of int4 that the format has.
        return (rng.integers(1, 8, n_cells) | rng.integers(1, 8, n_cells) << 4).astype(np.uint8)
    return rng.integers(1, 100, n_cells)


def fill_random(device: Any, buffer: Any, rng: Rng, positive: bool = False) -> None:
    """Random cells all over a buffer; those of a u8 one whose rows are tiles of weights are such.
    """
    row_cells = max(1, prod(buffer.shape[1:]))
    shape = (min(len(buffer), max(1, N_RANDOM // row_cells)), *buffer.shape[1:])
    n_cells = min(prod(shape), N_RANDOM)
    if buffer.dtype == "u8" and shape[-1] in TILES:
        cells = TILES[shape[-1]](-(-n_cells // shape[-1]), rng)
    else:
        cells = random_cells(buffer.dtype, n_cells, rng, positive)
    repeat(device, buffer, np.resize(cells, shape))


def repeat(device: Any, buffer: Any, rows: Array) -> None:
    """`rows` at the start of a buffer and then again and again, the copies made by the device."""
    n_rows, n_done = len(buffer), len(rows)
    device.upload(buffer[:n_done], rows)
    while n_done < n_rows:
        n_more = min(n_done, n_rows - n_done)
        device.copy(buffer[:n_more], buffer[n_done : n_done + n_more])
        n_done += n_more
