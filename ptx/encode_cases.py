"""Owns what the tests of the integer encoders share: weights, random and at every edge, and a loop
that encodes them one number at a time.

It must not know how integers are stored. `qmax` is the largest code, 7 or 127.
"""

from typing import Any

import numpy as np

from ptx.numerics import DTYPES, GROUP, POISON, Array, round_to_bf16, widen_bf16
from ptx.op import Op

# N, K: one group; fewer groups than the eight warps of a block, just as many, and more.
SHAPES = [(1, 128), (3, 256), (2, 1024), (2, 1152), (1, 2176)]
MAX_FLOAT = float(np.finfo(np.float32).max)
SMALLEST_NORMAL = 2.0**-126
NOT_FINITE = {"nan": 0x7FC00000, "-nan": 0xFFC12345, "signalling nan": 0x7F800001,
              "inf": 0x7F800000, "-inf": 0xFF800000}  # fmt: skip


def arguments(op: Op, w: Array) -> dict[str, Any]:
    """w [N, K] with outputs that nobody wrote, whose shapes do not follow from w's letters."""
    n_rows, width = w.shape
    dims = {"N": n_rows, "K": width, "J": width // 2, "R": width // GROUP}
    outputs = {
        p.name: np.full([dims[axis] for axis in p.shape or ()], POISON[p.dtype], DTYPES[p.dtype])
        for p in op.params
        if p.out
    }
    return {"w": w, **outputs}


def plain_loop(w: Array, qmax: int) -> tuple[Array, Array, list[int]]:
    """w f32 [N, K] -> q [N, K], scales bf16 bits [N, K / 128], bad [N], as the contract reads."""
    q = np.zeros(w.shape, np.int8)
    scales = np.zeros((len(w), w.shape[1] // GROUP), np.uint16)
    bad = [-1] * len(w)
    for row, r in np.ndindex(*scales.shape):
        cells = slice(GROUP * r, GROUP * (r + 1))
        finite = np.isfinite(w[row, cells]).all()
        a = max(abs(x) for x in w[row, cells]) if finite else np.float32(np.inf)
        bits = 0x3F80 if a == 0 else round_to_bf16(np.array([a]) / np.float32(qmax))[0]
        if 0x0080 <= bits < 0x7F80:
            scales[row, r] = bits
            (scale,) = widen_bf16(scales[row, r : r + 1])
            q[row, cells] = [max(-qmax, min(qmax, round(float(x / scale)))) for x in w[row, cells]]
        elif bad[row] < 0:
            bad[row] = r
    return q, scales, bad


def random_weights(n_rows: int, width: int) -> Array:
    """f32 [N, K]; neighbouring groups differ in size, so that one read for another is far off."""
    rng = np.random.default_rng(n_rows + width)
    w = rng.standard_normal((n_rows, width // GROUP, GROUP))
    w *= np.exp2(rng.integers(-60, 60, (n_rows, width // GROUP, 1)))
    return w.reshape(n_rows, width).astype(np.float32)


def one_group(values: Array | list[float], a: float) -> Array:
    """f32 [1, 128]: the values, zeros, and `a` at the end, which decides the scale."""
    w = np.zeros((1, GROUP))
    w[0, : len(values)] = values
    w[0, -1] = a
    return w.astype(np.float32)


def ties_of_scales(qmax: int) -> Array:
    """f32 [384, 128]: a / qmax on the middle between two neighbouring bf16, and one float32 off it.

    For every fraction of bf16. `a` is exact, so exact division meets the middle itself.
    """
    middles = np.arange(0x3F80, 0x4000, dtype=np.uint32) * 65536 + 32768
    a = (qmax * middles.view(np.float32).astype(np.float64)).astype(np.float32)
    near = np.concatenate([np.nextafter(a, np.float32(0)), a, np.nextafter(a, np.float32(np.inf))])
    w = np.zeros((len(near), GROUP), np.float32)
    w[:, 5] = near
    w[:, 6] = -0.5 * near
    return w


def ties_of_codes(qmax: int, exponent: int = 0) -> Array:
    """f32 [128, 128]: for every fraction of a bf16 scale, w / scale halfway between two integers.

    All of them for int4, every fifth for int8, and beside each, where there is room, one float32
    off to either side. `exponent` is the scale's.
    """
    scales = widen_bf16(np.arange(0x3F80, 0x4000)).astype(np.float64) * 2.0**exponent
    steps = np.arange(-qmax, qmax, 1 if qmax == 7 else 5) + 0.5
    middles = (scales[:, None] * steps).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    cells = np.concatenate([middles, *beside], axis=1)[:, : GROUP - 1]
    w = np.zeros((len(scales), GROUP), np.float32)
    w[:, : cells.shape[1]] = cells
    w[:, -1] = qmax * scales
    return w


def edge_groups(qmax: int) -> Array:
    """f32 [n, 128]: groups at the ends of what can be encoded, one a row."""
    smallest = qmax * SMALLEST_NORMAL
    quarters = np.arange(-27, 28) / 4
    groups = [
        one_group([0.0, -0.0], 0.0),
        one_group([0.0], -0.0),
        one_group(np.arange(-qmax, qmax)[:127] + 0.5, -qmax),
        one_group([-MAX_FLOAT, MAX_FLOAT / 2, 1.0, -1e-45], MAX_FLOAT),
        one_group([1e-45, -1e-45, 1.1e-38, -1.1e-38], 1.0),
        # Weights that are subnormal, yet up to a whole step: flushed to zero they lose codes.
        one_group(quarters * SMALLEST_NORMAL, smallest),
        # a / qmax is subnormal, halfway to the smallest normal bf16, and rounds up to it.
        one_group(quarters * SMALLEST_NORMAL, smallest * (1 - 2.0**-8)),
        # One float32 below that, and far below: refused.
        one_group([1e-45], np.nextafter(np.float32(smallest * (1 - 2.0**-8)), np.float32(0))),
        one_group([], 1e-45),
        one_group([-1e-40], 1e-39),
    ]
    for bits in NOT_FINITE.values():
        for at in (0, 1, 66, 127):
            w = np.arange(GROUP, dtype=np.float32)[None].copy()
            w.view(np.uint32)[0, at] = bits
            groups.append(w)
    return np.concatenate(groups)


def all_cases(qmax: int) -> dict[str, Array]:
    """Weights by what they try."""
    return {
        "random": random_weights(16, 1152),
        "scales on a tie": ties_of_scales(qmax),
        "codes on a tie": ties_of_codes(qmax),
        "codes on a tie, smallest scales": ties_of_codes(qmax, -126),
        "codes on a tie, largest scales": ties_of_codes(qmax, 124 if qmax == 7 else 120),
        "edges": edge_groups(qmax),
        "rows of edges": edge_rows(qmax),
    }


def edge_rows(qmax: int) -> Array:
    """f32 [n, 1280]: the edge groups spread over rows, others between them, refused ones too."""
    rng = np.random.default_rng(qmax)
    edges = edge_groups(qmax)
    w = random_weights(len(edges), 10 * GROUP).reshape(len(edges), 10, GROUP)
    for row, edge in enumerate(edges):
        w[row, rng.integers(0, 10)] = edge
        w[row, rng.integers(0, 10)] = edges[rng.integers(0, len(edges))]
    return w.reshape(len(edges), -1)
