"""Owns what the tests of the linear ops share: shapes past every edge, and inputs for each format.

It must not know how an op computes.
"""

from typing import Any

import numpy as np

from ptx.numerics import GROUP, Array, round_to_bf16

# T, N, K: one and one past a warp, a block's eight outputs, and a group of 128.
PLAIN = [(1, 1, 1), (3, 1, 65), (2, 9, 1), (5, 17, 63), (1, 8, 129)]
GROUPED = [(1, 1, 128), (3, 9, 128), (2, 17, 256), (1, 8, 640)]
SHAPES = {"f32": PLAIN, "bf16": PLAIN, "int8": GROUPED, "int4": GROUPED}


def _rows(n_tokens: int, n_out: int, n_in: int) -> tuple[np.random.Generator, Array]:
    rng = np.random.default_rng(n_tokens + n_out)
    return rng, rng.standard_normal((n_tokens, n_in))


def f32_inputs(n_tokens: int, n_out: int, n_in: int) -> dict[str, Any]:
    """x [T, K] and w [N, K]."""
    rng, x = _rows(n_tokens, n_out, n_in)
    return {"x": x, "w": rng.standard_normal((n_out, n_in))}


def bf16_inputs(n_tokens: int, n_out: int, n_in: int) -> dict[str, Any]:
    """x [T, K] and w [N, K] as bf16 bits."""
    rng, x = _rows(n_tokens, n_out, n_in)
    return {"x": x, "w": round_to_bf16(rng.standard_normal((n_out, n_in)))}


def int8_inputs(n_tokens: int, n_out: int, n_in: int) -> dict[str, Any]:
    """x [T, K], codes [N, K] with both ends among them, scales [N, K / 128]."""
    rng, x = _rows(n_tokens, n_out, n_in)
    codes = rng.integers(-127, 128, (n_out, n_in), np.int8)
    codes[0, :2] = -127, 127
    return {"x": x, "codes": codes, "scales": _scales(rng, n_out, n_in)}


def int4_inputs(n_tokens: int, n_out: int, n_in: int) -> dict[str, Any]:
    """x [T, K], codes [N, K / 2] without the nibble 8, scales [N, K / 128]."""
    rng, x = _rows(n_tokens, n_out, n_in)
    low, high = rng.integers(-7, 8, (2, n_out, n_in // 2)) & 15
    codes = (low | high << 4).astype(np.uint8)
    return {"x": x, "codes": codes, "scales": _scales(rng, n_out, n_in)}


def _scales(rng: np.random.Generator, n_out: int, n_in: int) -> Array:
    """Any positive bf16 up to 2 for most, so that a group read with its neighbour's is far off."""
    return round_to_bf16(2.0 ** rng.uniform(-8, 1, (n_out, n_in // GROUP)))
