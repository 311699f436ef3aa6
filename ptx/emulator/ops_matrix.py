"""Owns the matrix moves of a warp: ldmatrix, stmatrix, movmatrix, and what they share with mma.

It must not know scheduling: selections are whole warps. Contract: the PTX ISA's warp-level matrix
instructions.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.decode import Build, Flow, Step, opcode
from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES
from ptx.emulator.fragments import LANES
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_memory import address_of
from ptx.emulator.syntax import Operand, Vector
from ptx.numerics import Array

U32 = TYPES["u32"]
FULL = np.array(0xFFFFFFFF, np.uint32)
COUNTS = {"x1": 1, "x2": 2, "x4": 4}


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
