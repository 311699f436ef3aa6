"""Owns the tile order of quantised weights [N, K]: 8 rows by a group of 128 along K, scales within.

A weight is u8 [R, I, Q], R = K / 128 groups, I = N / 8 tiles of rows, Q bytes a tile: all tiles of
a group before the next, so that the rows of a block are one run of bytes in each group. A tile is
its codes, then the 8 rows' scales, bf16. Codes: int4 lies row by row, 64 bytes each, as in
`encode_int4_group128`; int8 in two halves of 64 along K, each row by row. It must not know ops.
"""

import numpy as np

from ptx.numerics import GROUP, Array

ROWS = 8
HALF = 64
CODE_BYTES = {"int4": ROWS * GROUP // 2, "int8": ROWS * GROUP}
TILE_BYTES = {weight: n_bytes + 2 * ROWS for weight, n_bytes in CODE_BYTES.items()}


def tile(weight: str, codes: Array, scales: Array) -> Array:
    """u8 [R, I, Q] of codes u8 [N, K / 2] (int4) or i8 [N, K] (int8) and bf16 bits [N, K / 128]."""
    n_tiles, n_groups = len(scales) // ROWS, scales.shape[1]
    rows = codes.view(np.uint8).reshape(n_tiles, ROWS, n_groups, -1, HALF)
    packed = rows.transpose(2, 0, 3, 1, 4).reshape(n_groups, n_tiles, CODE_BYTES[weight])
    tails = np.ascontiguousarray(scales.reshape(n_tiles, ROWS, n_groups).transpose(2, 0, 1))
    return np.concatenate([packed, tails.astype("<u2").view(np.uint8)], axis=2)


def untile(weight: str, w: Array) -> tuple[Array, Array]:
    """Codes u8 [N, K / 2] or i8 [N, K], and scales, bf16 bits [N, K / 128], of u8 [R, I, Q]."""
    n_groups, n_tiles, _ = w.shape
    packed, tails = np.split(w, [CODE_BYTES[weight]], axis=2)
    rows = packed.reshape(n_groups, n_tiles, -1, ROWS, HALF).transpose(1, 3, 0, 2, 4)
    codes = np.ascontiguousarray(rows).reshape(n_tiles * ROWS, -1)
    scales = np.ascontiguousarray(tails).view("<u2").transpose(1, 2, 0).reshape(len(codes), -1)
    return codes.view(np.int8) if weight == "int8" else codes, np.ascontiguousarray(scales)
