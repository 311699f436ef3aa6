"""Owns what the lanes of a warp tell each other: shfl, vote, match, redux, elect, activemask.

It must not know scheduling: a step's mask says who must be there before it runs. Selections hold
whole member sets, in ascending lane order. Contract: the PTX ISA's warp-level instructions.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.decode import Build, Flow, Step, opcode
from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES
from ptx.emulator.lanes import WARP, Sel
from ptx.emulator.registers import NEVER_WRITTEN, Get
from ptx.emulator.syntax import Immediate, Operand, Pair
from ptx.numerics import Array

U32, S32, PRED = TYPES["u32"], TYPES["s32"], TYPES["pred"]
FULL = 0xFFFFFFFF


def gathered(build: Build, mask: Operand, run: Callable[[Sel], None]) -> Step:
    """A step that waits for the lanes of its member mask."""
    full = isinstance(mask, Immediate) and int(mask.value) & FULL == FULL
    return Step(
        run, Flow.GATHER, mask=build.read(mask, U32), full_mask=full, waits_for="lanes of its mask"
    )


def by_warp(build: Build, sel: Sel) -> tuple[Array, Array]:
    """Warp rows and lane columns of a selection."""
    numbers = build.lanes.index(sel)
    return numbers // WARP, numbers % WARP


@opcode("shfl")
def _shfl(build: Build) -> Step:
    build.take_type()
    how = build.take("up", "down", "bfly", "idx")
    if not build.take("sync") or how is None:
        raise build.refuse("needs .sync and a mode: plain shfl is gone from the ISA")
    build.done(5)
    target = build.operand(0)
    first = target.first if isinstance(target, Pair) else target
    put = build.write(first, U32)
    put_found = build.write(target.second, PRED) if isinstance(target, Pair) else None
    get = build.read(build.operand(1), U32, copies=True)
    b, c = build.read(build.operand(2), U32), build.read(build.operand(3), U32)
    lanes, mask = build.lanes, build.read(build.operand(4), U32)
    source, written = build.reg(build.operand(1)), build.reg(first)

    def run(sel: Sel) -> None:
        numbers = lanes.index(sel)
        lane = lanes.lane[sel].astype(np.int64)
        step = (np.asarray(b(sel)) & np.uint32(31)).astype(np.int64)
        control = np.asarray(c(sel)).astype(np.int64)
        clamp, segment = control & 31, (control >> 8) & 31
        top = (lane & segment) | (clamp & ~segment)
        if how == "up":
            other = lane - step
            found = other >= top
        elif how == "down":
            other = lane + step
            found = other <= top
        elif how == "bfly":
            other = lane ^ step
            found = other <= top
        else:
            other = (lane & segment) | (step & ~segment)
            found = other <= top
        other = np.where(found, other, lane)
        here = numbers - lane + other
        everywhere = np.zeros(lanes.n_lanes, np.uint32)
        everywhere[numbers] = get(sel)
        member = (np.asarray(mask(sel)) >> other.astype(np.uint32)) & np.uint32(1)
        present = np.zeros(lanes.n_lanes, bool)
        present[numbers] = True
        good = (member != 0) & present[here]
        if not good.all():
            raise Fault("undefined", "reads a lane outside its member mask", numbers[~good])
        taint = None
        if source is not None and source.taint is not None:
            taint, origin = source.taint[here], source.origin
        put(sel, everywhere[here])
        if taint is not None and written is not None and taint.max() < NEVER_WRITTEN:
            written.mark(sel, taint, origin)
        if put_found is not None:
            put_found(sel, np.broadcast_to(found, len(numbers)))

    return gathered(build, build.operand(4), run)


def ballot(build: Build, sel: Sel, holds: Array) -> Array:
    """For each selected lane the bits of its warp's lanes for which `holds`."""
    rows, columns = by_warp(build, sel)
    bits = np.where(holds, np.int64(1) << columns, 0)
    totals = np.zeros(build.lanes.n_lanes // WARP, np.int64)
    np.add.at(totals, rows, bits)
    return totals[rows].astype(np.uint32)


@opcode("vote")
def _vote(build: Build) -> Step:
    type_ = build.take_type()
    how = build.take("all", "any", "uni", "ballot")
    if not build.take("sync") or how is None:
        raise build.refuse("needs .sync and a mode")
    build.done(3)
    put = build.write(build.operand(0), type_)
    get, mask = build.read(build.operand(1), PRED), build.read(build.operand(2), U32)

    def run(sel: Sel) -> None:
        n = len(build.lanes.numbers[sel])
        holds = np.broadcast_to(get(sel), n)
        members = np.broadcast_to(mask(sel), n)
        found = ballot(build, sel, holds) & members
        results: dict[str, Callable[[], Array]] = {
            "ballot": lambda: found,
            "any": lambda: found != 0,
            "all": lambda: found == members,
            "uni": lambda: (found == members) | (found == 0),
        }
        put(sel, results[how]())

    return gathered(build, build.operand(2), run)


@opcode("activemask")
def _activemask(build: Build) -> Step:
    build.take_type()
    build.done(1)
    put = build.write(build.operand(0), U32)

    def run(sel: Sel) -> None:
        put(sel, ballot(build, sel, np.ones(len(build.lanes.numbers[sel]), bool)))

    return Step(run)


@opcode("match")
def _match(build: Build) -> Step:
    type_ = build.take_type()
    how = build.take("any", "all")
    if not build.take("sync") or how is None:
        raise build.refuse("needs .sync and a mode")
    build.done(3)
    target = build.operand(0)
    first = target.first if isinstance(target, Pair) else target
    put = build.write(first, U32)
    put_all = build.write(target.second, PRED) if isinstance(target, Pair) else None
    get = build.read(build.operand(1), type_)
    mask = build.read(build.operand(2), U32)

    def run(sel: Sel) -> None:
        rows, columns = by_warp(build, sel)
        values = np.broadcast_to(get(sel), len(rows))
        members = np.broadcast_to(mask(sel), len(rows))
        table = np.zeros((build.lanes.n_lanes // WARP, WARP), values.dtype)
        here = np.zeros(table.shape, bool)
        table[rows, columns], here[rows, columns] = values, True
        same = here[rows] & (table[rows] == values[:, None])
        found = (same.astype(np.int64) << np.arange(WARP)).sum(axis=1).astype(np.uint32) & members
        if how == "any":
            put(sel, found)
            return
        agree = found == members
        put(sel, np.where(agree, members, np.uint32(0)))
        if put_all is not None:
            put_all(sel, agree)

    return gathered(build, build.operand(2), run)


REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}


@opcode("redux")
def _redux(build: Build) -> Step:
    type_ = build.take_type()
    how = build.take(*REDUCTIONS)
    if not build.take("sync") or how is None or type_.n_bits != 32 or type_.kind == "f32":
        raise build.refuse("needs .sync, an operation and a 32-bit integer type")
    build.done(3)
    put, get = build.write(build.operand(0), type_), build.read(build.operand(1), type_)
    mask = build.read(build.operand(2), U32)

    def run(sel: Sel) -> None:
        rows, _ = by_warp(build, sel)
        values = np.broadcast_to(get(sel), len(rows))
        # Member sets of one warp may differ; each is reduced by itself.
        keys = rows.astype(np.uint64) << np.uint64(32) | np.broadcast_to(mask(sel), len(rows))
        _, inverse = np.unique(keys, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        starts = np.flatnonzero(np.append(True, np.diff(inverse[order]) != 0))
        put(sel, REDUCTIONS[how].reduceat(values[order], starts)[inverse])

    return gathered(build, build.operand(2), run)


@opcode("elect")
def _elect(build: Build) -> Step:
    build.take("sync")
    build.done(2)
    target = build.operand(0)
    if not isinstance(target, Pair):
        raise build.refuse("needs d|p")
    put = build.write(target.first, U32)
    put_elected = build.write(target.second, PRED)
    mask: Get = build.read(build.operand(1), U32)

    def run(sel: Sel) -> None:
        lane = build.lanes.lane[sel]
        members = np.broadcast_to(mask(sel), len(lane)).astype(np.int64)
        lowest = np.log2(members & -members).astype(np.uint32)
        put(sel, lowest)
        put_elected(sel, lane == lowest)

    return gathered(build, build.operand(1), run)
