"""Owns what numpy lacks of NVFP4: e2m1 codes in pairs, and the tile order of their block scales.

It must not know ops, nor the emulator. A weight is code x block scale / global scale: an e2m1 code
of four bits, an e4m3 scale without a sign for 16 neighbours along K, a float32 for the matrix.
"""

import numpy as np

from ptx.fp8 import nearest
from ptx.numerics import Array

E2M1_MAX = 6.0
E2M1_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
BLOCK = 16  # codes of a scale
# A tile of scales: rows, groups along K, bytes; rows that are 32 apart share a line.
TILE_ROWS, TILE_GROUPS, TILE_BYTES = 128, 4, 512
LINES = 32
# What global scale lets the largest block scale and the largest code meet the largest weight.
GLOBAL_TIMES_MAX = 448.0 * E2M1_MAX


def round_to_e2m1(x: Array) -> Array:
    """Codes 0 .. 15, uint8, of the e2m1 nearest to each cell; ties go to even, past 6 it stays 6.

    The sign of a zero is kept. x holds no NaN.
    """
    signs = np.where(np.signbit(x), np.uint8(8), np.uint8(0))
    codes: Array = nearest(x, E2M1_MAGNITUDES).astype(np.uint8) | signs
    return codes


def pack_nibbles(codes: Array) -> Array:
    """u8 [N, K / 2] of codes [N, K], the even one of two in the low nibble."""
    pairs: Array = codes[:, 0::2] | codes[:, 1::2] << 4
    return pairs


def widen_e2m1(pairs: Array) -> Array:
    """float32 values [N, K] of u8 [N, K / 2], exact."""
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(pairs), -1)
    magnitudes = E2M1_MAGNITUDES.astype(np.float32)
    values: Array = np.concatenate([magnitudes, -magnitudes])[codes]
    return values


def tile_scales(scales: Array) -> Array:
    """u8 [ceil(N / 128), R / 4, 512] of row-major scales u8 [N, R]; rows past N are 0.

    In a tile, byte 16 (row mod 32) + 4 floor(row / 32) + group.
    """
    n_rows, n_groups = scales.shape
    padded = np.zeros((-(-n_rows // TILE_ROWS) * TILE_ROWS, n_groups), np.uint8)
    padded[:n_rows] = scales
    cells = padded.reshape(-1, TILE_ROWS // LINES, LINES, n_groups // TILE_GROUPS, TILE_GROUPS)
    return np.ascontiguousarray(cells.transpose(0, 3, 2, 1, 4)).reshape(
        len(cells), n_groups // TILE_GROUPS, TILE_BYTES
    )


def untile_scales(tiles: Array, n_rows: int) -> Array:
    """Row-major scales u8 [N, R] of tiles u8 [I, R / 4, 512]: the inverse of `tile_scales`."""
    cells = tiles.reshape(*tiles.shape[:2], LINES, TILE_ROWS // LINES, TILE_GROUPS)
    rows = cells.transpose(0, 3, 2, 1, 4).reshape(len(tiles) * TILE_ROWS, -1)
    return np.ascontiguousarray(rows[:n_rows])
