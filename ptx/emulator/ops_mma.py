"""Owns matrix instructions of a warp: mma.sync, ldmatrix, stmatrix, movmatrix.

It must not know scheduling: selections are whole warps. Contract: the PTX ISA's warp-level matrix
instructions. Products are exact; one sum in float64 for each result, rounded once.
It is long because the matrix opcodes share their helpers.
"""

import re
from collections.abc import Callable

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.decode import Build, Flow, Step, opcode
from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES, narrow, small_values, to_f32, widen
from ptx.emulator.fragments import (
    BITS,
    COLUMNS,
    LANES,
    ROWS,
    a_places,
    b_places,
    c_places,
    elements,
    matrix,
    n_registers,
)
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_integer import saturated_s32
from ptx.emulator.ops_memory import address_of
from ptx.emulator.registers import Get
from ptx.emulator.syntax import Operand, Vector
from ptx.numerics import Array

U32, U16 = TYPES["u32"], TYPES["u16"]
FULL = np.array(0xFFFFFFFF, np.uint32)
COUNTS = {"x1": 1, "x2": 2, "x4": 4}
SHAPES = {
    "f16": (8, 16), "bf16": (8, 16), "tf32": (4, 8), "s8": (16, 32), "u8": (16, 32),
    "s4": (32, 64), "u4": (32, 64), "e4m3": (16, 32), "e5m2": (16, 32), "e2m1": (32, 64),
}


def whole_warp(run: Callable[[Sel], None]) -> Step:
    """A step that all 32 lanes of a warp run together."""
    return Step(run, Flow.GATHER, mask=lambda sel: FULL, full_mask=True, aligned=True,
                waits_for="its warp")


def _check_whole(build: Build, sel: Sel) -> None:
    numbers = build.lanes.numbers[sel]
    if len(numbers) % LANES:
        raise Fault("barrier", "needs all 32 lanes of the warp", numbers)


def words(build: Build, operand: Operand, n: int) -> Callable[[Sel], Array]:
    """A vector operand's registers as [warps, lanes, n] uint32."""
    gets = build.reads(operand, U32, n)

    def read(sel: Sel) -> Array:
        _check_whole(build, sel)
        n_lanes = len(build.lanes.numbers[sel])
        parts = [np.broadcast_to(get(sel), n_lanes) for get in gets]
        return np.stack(parts, axis=-1).reshape(-1, LANES, n)

    return read


@opcode("mma")
def _mma(build: Build) -> Step:
    for word in ("sync", "aligned", "row", "col"):
        build.take(word)
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
    padded = kind in ("kind::f8f6f4", "kind::mxf8f6f4")
    for type_ in (a_type, b_type):
        allowed = (32,) if padded else SHAPES.get(type_, ())
        if type_ not in BITS or depth not in allowed:
            raise build.refuse(f"{type_} with k{depth} is outside what the emulator runs")
    build.done(8 if scaled else 4)
    scales = (scale_type, vector) if scaled else None
    product = _product(build, a_type, b_type, depth, padded, scales)
    return _accumulate(build, product, d_type, c_type, satfinite)


def _product(
    build: Build, a_type: str, b_type: str, depth: int, padded: bool,
    scales: tuple[str, str | None] | None,
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
    build: Build, depth: int, scale_type: str, vector: str | None
) -> Callable[[Sel], tuple[Array, Array]]:
    """Block scales as factors [warps, 16, depth] of A and [warps, depth, 8] of B."""
    n_blocks = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4}.get(vector or "", 0)
    if scale_type not in ("ue4m3", "ue8m0") or not n_blocks:
        raise build.refuse("needs ue4m3 or ue8m0 and scale_vec 1X, 2X or 4X")
    if scale_type == "ue4m3" and n_blocks != 4:
        raise build.refuse("ue4m3 scales come as scale_vec::4X")
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
    build: Build, product: Callable[[Sel], Array], d_type: str, c_type: str, satfinite: bool
) -> Step:
    if (d_type, c_type) not in (("f32", "f32"), ("f16", "f16"), ("s32", "s32")):
        raise build.refuse(f"accumulates {c_type} into {d_type}: outside what the emulator runs")
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


def _rows_of(build: Build, count: int) -> Callable[[Sel], tuple[Array, Array]]:
    """The lanes that give row addresses, and their numbers among the selected."""

    def choose(sel: Sel) -> tuple[Array, Array]:
        _check_whole(build, sel)
        numbers = build.lanes.index(sel)
        giving = np.flatnonzero(numbers % LANES < 8 * count)
        return numbers[giving], giving

    return choose


def _matrix_words(build: Build) -> tuple[int, bool]:
    for word in ("sync", "aligned"):
        build.take(word)
    count = COUNTS.get(build.take(*COUNTS) or "", 0)
    transposed = bool(build.take("trans"))
    if not build.take("m8n8") or not build.take("b16") or not count:
        raise build.refuse("needs .m8n8, .x1, .x2 or .x4, and .b16")
    build.take("shared::cta", "shared")
    build.done(2)
    return count, transposed


def _transposed(rows: Array) -> Array:
    """[..., 8, 4] words of two 16-bit elements: the transposed 8 x 8 matrix."""
    halves = np.ascontiguousarray(rows).view(np.uint16)
    return np.ascontiguousarray(np.swapaxes(halves, -1, -2)).view(np.uint32)


@opcode("ldmatrix")
def _ldmatrix(build: Build) -> Step:
    count, transposed = _matrix_words(build)
    target = build.operand(0)
    items = target.items if isinstance(target, Vector) else (target,)
    if len(items) != count:
        raise build.refuse(f"has {len(items)} registers, expected {count}")
    puts = [build.write(item, U32) for item in items]
    regs = [build.reg(item) for item in items]
    address, access = address_of(build, build.operand(1), "shared"), Access(
        build.state, "shared", 4, 4
    )
    choose, line = _rows_of(build, count), build.source.line

    def run(sel: Sel) -> None:
        lanes, _ = choose(sel)
        loaded, fresh = access.load(lanes, address(lanes))
        rows = loaded.reshape(-1, count, 8, 4)
        if transposed:
            rows = _transposed(rows)
        for at, put in enumerate(puts):
            put(sel, rows[:, at].reshape(-1))
        if fresh is not None:
            marks = np.repeat(fresh.reshape(-1, 8 * count).any(axis=1), LANES)
            for reg in regs:
                if reg is not None:
                    reg.mark(sel, marks, f"loaded in line {line}")

    return whole_warp(run)


@opcode("stmatrix")
def _stmatrix(build: Build) -> Step:
    count, transposed = _matrix_words(build)
    read = words(build, build.operand(1), count)
    address, access = address_of(build, build.operand(0), "shared"), Access(
        build.state, "shared", 4, 4
    )
    choose, state = _rows_of(build, count), build.state

    def run(sel: Sel) -> None:
        lanes, _ = choose(sel)
        rows = np.moveaxis(read(sel), -1, 1).reshape(-1, count, 8, 4)
        if transposed:
            rows = _transposed(rows)
        access.store(lanes, address(lanes), rows.reshape(-1, 4))
        state.progress += 1

    return whole_warp(run)


@opcode("movmatrix")
def _movmatrix(build: Build) -> Step:
    for word in ("sync", "aligned", "m8n8", "trans", "b16"):
        if not build.take(word):
            raise build.refuse("is .sync.aligned.m8n8.trans.b16 only")
    build.done(2)
    put, read = build.write(build.operand(0), U32), words(build, build.operand(1), 1)
    return whole_warp(lambda sel: put(sel, _transposed(read(sel).reshape(-1, 8, 4)).reshape(-1)))
