"""Owns mma.sync: products of the matrices that a warp holds in its registers.

It must not know scheduling: selections are whole warps. Contract: the PTX ISA's mma; which forms
there are is in `mma_forms.py`. Products are exact; one sum in float64 for each result, rounded
once.
"""

import re
from collections.abc import Callable

import numpy as np

from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES, narrow, small_values, to_f32, widen
from ptx.emulator.fragments import (
    BITS,
    COLUMNS,
    ROWS,
    a_places,
    b_places,
    c_places,
    elements,
    matrix,
    n_registers,
)
from ptx.emulator.lanes import Sel
from ptx.emulator.mma_forms import PADDED, fault_of, vector_of
from ptx.emulator.ops_integer import saturated_s32
from ptx.emulator.ops_matrix import U32, whole_warp, words
from ptx.emulator.registers import Get
from ptx.emulator.syntax import Operand, Vector
from ptx.numerics import Array

U16 = TYPES["u16"]
N_BLOCKS = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4}


@opcode("mma")
def _mma(build: Build) -> Step:
    if not all([build.take(word) for word in ("sync", "aligned", "row", "col")]):
        raise build.refuse("is .sync.aligned with .row.col only")
    shape = next((m for m in build.mods if re.fullmatch(r"m16n8k\d+", m)), None)
    if shape is None:
        raise build.refuse("needs a shape m16n8kK")
    build.mods.remove(shape)
    depth = int(shape.removeprefix("m16n8k"))
    kind = build.take("kind::mxf4nvf4", "kind::mxf4", "kind::mxf8f6f4", "kind::f8f6f4")
    scaled, vector = build.take("block_scale"), build.take("scale_vec::1X", "scale_vec::2X",
                                                           "scale_vec::4X")
    satfinite = bool(build.take("satfinite"))
    scale_type = build.mods.pop() if scaled and build.mods else ""
    if len(build.mods) != 4:
        raise build.refuse("needs the types of D, A, B and C")
    d_type, a_type, b_type, c_type = build.mods
    build.mods.clear()
    if scaled:
        vector = vector or vector_of(kind)
    why = fault_of(
        kind, depth, (d_type, a_type, b_type, c_type), (scale_type, vector) if scaled else None,
        satfinite,
    )
    if why:
        raise build.refuse(why)
    build.done(8 if scaled else 4)
    scales = (scale_type, N_BLOCKS[vector]) if scaled and vector else None
    product = _product(build, a_type, b_type, depth, kind in PADDED, scales)
    return _accumulate(build, product, d_type, satfinite)


def _product(
    build: Build, a_type: str, b_type: str, depth: int, padded: bool,
    scales: tuple[str, int] | None,
) -> Callable[[Sel], Array]:
    """A B as [warps, 16, 8], float64 or int64."""
    a_bits, b_bits = (8 if padded else BITS[type_] for type_ in (a_type, b_type))
    a = words(build, build.operand(1), 2 * n_registers(a_bits, depth))
    b = words(build, build.operand(2), n_registers(b_bits, depth))
    factors = _factors(build, depth, *scales) if scales else None

    def run(sel: Sel) -> Array:
        left = matrix(elements(a(sel), a_type, padded), a_places(a_bits, depth), (ROWS, depth))
        right = matrix(elements(b(sel), b_type, padded), b_places(b_bits, depth), (depth, COLUMNS))
        if factors is not None:
            of_a, of_b = factors(sel)
            left, right = left * of_a, right * of_b
        total: Array = (left[:, :, :, None] * right[:, None, :, :]).sum(axis=2)
        return total

    return run


def _factors(
    build: Build, depth: int, scale_type: str, n_blocks: int
) -> Callable[[Sel], tuple[Array, Array]]:
    """Block scales as factors [warps, 16, depth] of A and [warps, depth, 8] of B."""
    table = small_values(scale_type)
    a, b = (words(build, build.operand(at), 1) for at in (4, 6))
    choose_a, choose_b = (_selector(build, build.operand(at)) for at in (5, 7))
    row = np.arange(ROWS)
    block = np.arange(depth) * n_blocks // depth

    def run(sel: Sel) -> tuple[Array, Array]:
        (byte_a, thread_a), (byte_b, thread_b) = choose_a(sel), choose_b(sel)
        # Rows g and g + 8 of A come from neighbouring lanes; B's column g from one lane.
        from_a = a(sel)[:, 4 * (row % 8) + 2 * thread_a + row // 8, 0]
        from_b = b(sel)[:, 4 * np.arange(COLUMNS) + thread_b, 0]
        scales_a = table[(from_a[:, :, None] >> (8 * (byte_a + block)).astype(np.uint32)) & 255]
        scales_b = table[(from_b[:, None, :] >> (8 * (byte_b + block))[:, None].astype(np.uint32))
                         & 255]
        return scales_a, scales_b

    def checked(sel: Sel) -> tuple[Array, Array]:
        for (byte, thread), limit in ((choose_a(sel), 2), (choose_b(sel), 4)):
            if byte + n_blocks > 4 or byte % n_blocks or not 0 <= thread < limit:
                raise Fault("undefined", f"selector {{{byte}, {thread}}} with {n_blocks} scales",
                            build.lanes.index(sel))
        return run(sel)

    return checked


def _selector(build: Build, operand: Operand) -> Callable[[Sel], tuple[int, int]]:
    gets: list[Get] = build.reads(operand, U16, 2) if isinstance(operand, Vector) else []
    if len(gets) != 2:
        raise build.refuse("needs a selector {byte, thread}")

    def read(sel: Sel) -> tuple[int, int]:
        values = [np.unique(get(sel)) for get in gets]
        if any(len(value) != 1 for value in values):
            raise Fault("undefined", "lanes disagree on the scale selector", build.lanes.index(sel))
        return int(values[0][0]), int(values[1][0])

    return read


def _accumulate(
    build: Build, product: Callable[[Sel], Array], d_type: str, satfinite: bool
) -> Step:
    target = build.operand(0)
    n = 2 if d_type == "f16" else 4
    items = target.items if isinstance(target, Vector) else (target,)
    if len(items) != n:
        raise build.refuse(f"D has {len(items)} registers, expected {n}")
    puts, c = [build.write(item, U32) for item in items], words(build, build.operand(3), n)
    rows, columns = c_places()

    def run(sel: Sel) -> None:
        total = product(sel)[:, rows, columns]
        before = c(sel)
        if d_type == "s32":
            wide = total + before.view(np.int32)
            result = (saturated_s32(wide) if satfinite else wide.astype(np.int32)).view(np.uint32)
        elif d_type == "f32":
            result = to_f32(total + before.view(np.float32)).view(np.uint32)
        else:
            halves = np.ascontiguousarray(before).view(np.uint16)
            result = np.ascontiguousarray(narrow(total + widen(halves, "f16"), "f16"))
            result = result.view(np.uint32)
        for at, put in enumerate(puts):
            put(sel, result[:, :, at].reshape(-1))

    return whole_warp(run)
