"""Owns the operands that each family is tried on, and what numpy says its kernel must write.

It must not use the emulator's code. `exact` operands are chosen so that every partial sum, in any
order, is a float32: an answer with one other bit is wrong. `random` ones bring all digits; there
the sum may be rounded anywhere, within a bound that is relative to the sum of magnitudes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ptx.feasibility.codes import FORMATS, e2m1, e4m3, packed_nibbles
from ptx.numerics import Array
from ptx.op import Constant

SEED = 5
# The ISA promises sums with at least single precision, and that a card may cut digits off instead
# of rounding: 17 terms, each short of less than 2^-24 of the largest.
F32_BOUND = 2.0**-20
# Half precision accumulates in f16.
F16_BOUND = 2.0**-9
# Published measurements of Ada and Hopper find 13 binary digits kept of what is aligned for a sum.
FP8_BOUND = 2.0**-9
ROWS, COLUMNS = 16, 8
# Cells of zeros around a matrix whose boxes may leave it.
EDGE = 128


@dataclass(frozen=True)
class Case:
    """Inputs in the order of the kernel's parameters, then what must be in the last one.

    `want` has the dtype of the cells, or is float64 with `magnitude` of its shape: then the cells
    are floats of `cells` and may be off by `bound` times magnitude. `start` is in the output first.
    """

    name: str
    inputs: tuple[Array, ...]
    want: Array
    cells: np.dtype[np.generic]
    magnitude: Array | None = None
    bound: float = 0.0
    start: Array | None = None


def exact(*inputs: Array, want: Array, start: Array | None = None) -> Case:
    """A case in which every bit counts."""
    return Case("exact", inputs, want, want.dtype, start=start)


def mma(constants: Mapping[str, Constant]) -> list[Case]:
    """D = A B + C for every pair of formats but the block-scaled ones."""
    kind, accumulator, depth = (constants[name] for name in ("format", "accumulator", "depth"))
    rng = np.random.default_rng(SEED)
    shapes = (ROWS, int(depth)), (COLUMNS, int(depth))
    if accumulator == "s32":
        return _integer_mma(rng, shapes, constants["modifier"] == ".satfinite")
    value_of, code_of = FORMATS[str(kind)]
    dtype = np.dtype(np.float16 if accumulator == "f16" else np.float32)
    found = []
    for name in ("exact", "random"):
        if name == "exact":
            a, b = (code_of(rng.integers(-8, 9, shape).astype(np.float64)) for shape in shapes)
            c = rng.integers(-100, 101, (ROWS, COLUMNS)).astype(dtype)
        else:
            a, b = (code_of(rng.standard_normal(shape)) for shape in shapes)
            c = rng.standard_normal((ROWS, COLUMNS)).astype(dtype)
        found.append(_product(name, (a, b, c), value_of(a), value_of(b), c, _bound(kind, dtype)))
    return found


def _bound(kind: Constant, dtype: np.dtype[np.generic]) -> float:
    if dtype == np.float16:
        return F16_BOUND
    return FP8_BOUND if kind == "e4m3" else F32_BOUND


def _product(
    name: str, inputs: tuple[Array, ...], a: Array, b: Array, c: Array, bound: float
) -> Case:
    """The case of A [M, K], B [N, K], C [M, N], as values in float64, where sums are exact."""
    wide = a @ b.T + c.astype(np.float64)
    if name == "exact":
        return exact(*inputs, want=wide.astype(c.dtype))
    magnitude = np.abs(a) @ np.abs(b).T + np.abs(c.astype(np.float64))
    return Case(name, inputs, wide, c.dtype, magnitude, bound)


def _integer_mma(
    rng: np.random.Generator, shapes: tuple[tuple[int, int], ...], saturates: bool
) -> list[Case]:
    """All codes; C near both ends of s32, where a sum wraps or, if asked, stays at the end."""
    limits = np.iinfo(np.int32)
    a, b = (rng.integers(-128, 128, shape) for shape in shapes)
    c = rng.integers(limits.min, limits.max, (ROWS, COLUMNS), np.int32, endpoint=True)
    c[:, 0::2] = np.where(rng.integers(0, 2, c[:, 0::2].shape) == 1, limits.max, limits.min)
    total = a @ b.T + c.astype(np.int64)
    want = np.clip(total, limits.min, limits.max) if saturates else total
    return [exact(a.astype(np.int8), b.astype(np.int8), c, want=want.astype(np.int32))]


def mma_block_scaled(constants: Mapping[str, Constant]) -> list[Case]:
    """Codes times the scale of their 16 along K."""
    rng = np.random.default_rng(SEED)
    gentle = FORMATS["e4m3"][1](np.array([0.5, 1, 1.5, 2, 3, 4]))
    found = []
    for name in ("exact", "random"):
        a, b = (rng.integers(0, 16, (n, 64), np.uint8) for n in (ROWS, COLUMNS))
        # From 0x7F on a code is NaN or has a sign, which a scale has not.
        choice = gentle if name == "exact" else np.arange(0x7F, dtype=np.uint8)
        scale_a, scale_b = (rng.choice(choice, (n, 4)) for n in (ROWS, COLUMNS))
        c = rng.integers(-100, 101, (ROWS, COLUMNS)).astype(np.float32)
        wide_a, wide_b = (
            e2m1(codes) * np.repeat(e4m3(scales), 16, axis=1)
            for codes, scales in ((a, scale_a), (b, scale_b))
        )
        inputs = packed_nibbles(a), packed_nibbles(b), scale_a, scale_b, c
        found.append(_product(name, inputs, wide_a, wide_b, c, F32_BOUND))
    return found


def tile_product(constants: Mapping[str, Constant]) -> list[Case]:
    """As mma of bf16 over 32 of K, with B lying K first."""
    rng = np.random.default_rng(SEED)
    value_of, code_of = FORMATS["bf16"]
    zero = np.zeros((ROWS, COLUMNS), np.float32)
    found = []
    for name in ("exact", "random"):
        draw = (lambda s: rng.integers(-8, 9, s)) if name == "exact" else rng.standard_normal
        a, b = (code_of(np.asarray(draw(shape))) for shape in ((ROWS, 32), (32, COLUMNS)))
        found.append(_product(name, (a, b), value_of(a), value_of(b).T, zero, 2 * F32_BOUND))
    return found


def wgmma(constants: Mapping[str, Constant]) -> list[Case]:
    """D = A B of 64 x 64; each step may cut digits off once more."""
    kind, shape = str(constants["format"]), (64, int(constants["depth"]))
    rng = np.random.default_rng(SEED)
    if kind == "s8":
        a, b = (rng.integers(-128, 128, shape) for _ in range(2))
        return [exact(a.astype(np.int8), b.astype(np.int8), want=(a @ b.T).astype(np.int32))]
    value_of, code_of = FORMATS[kind]
    zero = np.zeros((64, 64), np.float32)
    bound = FP8_BOUND if kind == "e4m3" else int(constants["steps"]) * F32_BOUND
    found = []
    for name in ("exact", "random"):
        draw = (lambda s: rng.integers(-8, 9, s)) if name == "exact" else rng.standard_normal
        a, b = (code_of(np.asarray(draw(shape), np.float64)) for _ in range(2))
        found.append(_product(name, (a, b), value_of(a), value_of(b), zero, bound))
    return found


def _lanes_of(rows: Array, transposed: bool) -> Array:
    """What lanes hold [32, matrices, 2] of 16-bit rows [8 matrices, 8]."""
    tiles = rows.reshape(-1, 8, 8)
    tiles = tiles.swapaxes(1, 2) if transposed else tiles
    # Lane L has cells 2 (L mod 4) and the next of row L / 4, which is reading along the rows.
    return np.ascontiguousarray(tiles.reshape(len(tiles), 32, 2).swapaxes(0, 1))


def ldmatrix(constants: Mapping[str, Constant]) -> list[Case]:
    """Rows of 16-bit cells into lanes."""
    rows = np.random.default_rng(SEED).integers(0, 1 << 16, (32, 8), np.uint16)
    used = rows[: 8 * int(constants["n"])]
    return [exact(rows, want=_lanes_of(used, bool(constants["trans"])))]


def stmatrix(constants: Mapping[str, Constant]) -> list[Case]:
    """Lanes back into rows."""
    shape = (8 * int(constants["n"]), 8)
    rows = np.random.default_rng(SEED).integers(0, 1 << 16, shape, np.uint16)
    return [exact(_lanes_of(rows, bool(constants["trans"])), want=rows)]


def movmatrix(constants: Mapping[str, Constant]) -> list[Case]:
    """A matrix and its transpose."""
    cells = np.random.default_rng(SEED).integers(0, 1 << 16, (8, 8), np.uint16)
    return [exact(cells, want=np.ascontiguousarray(cells.T))]


def redux(constants: Mapping[str, Constant]) -> list[Case]:
    """Each half of a warp gets its reduction; sums wrap."""
    how, kind = str(constants["word"]).split(".")
    cells = np.random.default_rng(SEED).integers(0, 1 << 32, (2, 16), np.uint32)
    numbers = cells.view(np.int32) if kind == "s32" else cells
    call = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
            "or": np.bitwise_or, "xor": np.bitwise_xor}[how]
    reduced = call.reduce(numbers, axis=1, dtype=numbers.dtype)
    return [exact(cells, want=np.repeat(reduced, 16).reshape(2, 16))]


def cp_async(constants: Mapping[str, Constant]) -> list[Case]:
    """Rows of the other warp, zero past what is given."""
    n_bytes, given = int(constants["n_bytes"]), int(constants["given"])
    x = np.random.default_rng(SEED).integers(1, 256, (3, 64, n_bytes), np.uint8)
    want = np.roll(x, 32, axis=1)
    want[:, :, given:] = 0
    return [exact(x, want=want)]


def bulk_copy(constants: Mapping[str, Constant]) -> list[Case]:
    """Chunks of 16 bytes in reverse order."""
    x = np.random.default_rng(SEED).integers(0, 256, (2, 128, 16), np.uint8)
    return [exact(x, want=np.ascontiguousarray(x[:, ::-1]))]


def tensor_copy(constants: Mapping[str, Constant]) -> list[Case]:
    """Boxes of a matrix, zero past its edges, with runs of 16 bytes in the order of the swizzle."""
    rows, columns, box_rows, box_columns, swizzle = (
        int(constants[name]) for name in ("rows", "columns", "box_rows", "box_columns", "swizzle")
    )
    x = np.random.default_rng(SEED).integers(1, 1 << 16, (rows, columns), np.uint16)
    wide = np.pad(x, EDGE)
    # Run i goes where line i / 8 of 128 bytes, mod the runs of a span, is added without carry.
    runs = np.arange(box_rows * box_columns // 8)
    placed = runs ^ (runs >> 3 & max(swizzle // 16 - 1, 0))
    boxes = []
    for place in str(constants["places"]).split():
        row, column = (int(n) + EDGE for n in place.split(":"))
        box = wide[row : row + box_rows, column : column + box_columns].reshape(-1, 8)
        boxes.append(np.empty_like(box))
        boxes[-1][placed] = box
    return [exact(x, want=np.stack(boxes).reshape(-1, box_rows, box_columns))]


def setmaxnreg(constants: Mapping[str, Constant]) -> list[Case]:
    """Y = W^T X in small whole numbers."""
    rng = np.random.default_rng(SEED)
    n_rounds, n = int(constants["n_rounds"]), int(constants["n"])
    w, x = (rng.integers(-9, 10, (n_rounds, width)).astype(np.float32) for width in (n, 128))
    return [exact(w, x, want=w.T @ x)]


def griddepcontrol(constants: Mapping[str, Constant]) -> list[Case]:
    """y = 3 y + x as often as the kernel is launched."""
    n_blocks, n_launches = int(constants["n_blocks"]), int(constants["n_launches"])
    x = np.random.default_rng(SEED).integers(0, 1 << 32, (n_blocks, 128), np.uint32)
    y = np.zeros_like(x)
    for _ in range(n_launches):
        y = 3 * y + x
    return [exact(x, want=y, start=np.zeros_like(x))]
