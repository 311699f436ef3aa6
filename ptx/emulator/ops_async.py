"""Owns asynchronous copies and mbarriers as instructions: cp.async, cp.async.bulk, mbarrier.

It must not know when copies land: that is `completions.py`. Contract: the PTX ISA's sections on
asynchronous copies and mbarrier.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.completions import BARRIER, BULK, GROUP, Copy
from ptx.emulator.decode import Build, Flow, Step, opcode
from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_memory import address_of, take_cache_words
from ptx.emulator.syntax import Immediate, Sink
from ptx.numerics import Array

U32, U64, PRED = TYPES["u32"], TYPES["u64"], TYPES["pred"]
FILLED = 2


@opcode("cp")
def _cp(build: Build) -> Step:
    if not build.take("async"):
        raise build.refuse("needs .async")
    if build.take("wait_all"):
        build.done(0)
        return _waits(build, GROUP, None)
    if build.take("bulk"):
        return _bulk(build)
    if build.take("commit_group"):
        build.done(0)
        done = build.state.completions
        return Step(lambda sel: done.close_group(sel, GROUP))
    if build.take("wait_group"):
        build.done(1)
        return _waits(build, GROUP, build.integer(0))
    if build.take("mbarrier::arrive", "mbarrier"):
        return _arrive_after_copies(build)
    return _cp_async(build)


def _waits(build: Build, how: str, n_open: int | None) -> Step:
    completions = build.state.completions
    return Step(lambda sel: completions.wait_groups(sel, how, n_open))


def _cp_async(build: Build) -> Step:
    """A copy of 4, 8 or 16 bytes by each lane, with zeros for what the source size leaves out."""
    large = build.take("cg", "ca") == "cg"
    build.take("shared", "shared::cta")
    build.take("global")
    hinted = take_cache_words(build)
    n_operands = len(build.source.operands) - hinted
    if build.mods:
        build.done(3)
    n_bytes = build.integer(2)
    if n_bytes not in ((16,) if large else (4, 8, 16)):
        raise build.refuse(f"copies of {n_bytes} bytes: .cg takes 16, .ca 4, 8 or 16")
    given = build.operand(3) if n_operands == 4 else Immediate(n_bytes, "int")
    size = build.read(given, U32)
    target = address_of(build, build.operand(0), "shared")
    source = address_of(build, build.operand(1), "global")
    reads, writes = (Access(build.state, space, n_bytes, 1) for space in ("global", "shared"))
    return Step(lambda sel: _start_group(build, sel, target(sel), source(sel), size(sel), reads,
                                         writes, n_bytes))


def _start_group(
    build: Build, sel: Sel, target: Array, source: Array, size: Array, reads: Access,
    writes: Access, n_bytes: int,
) -> None:
    state, lanes = build.state, build.lanes.index(sel)
    size = np.broadcast_to(size, len(lanes)).astype(np.int64)
    if (size > n_bytes).any():
        raise Fault("undefined", f"a source size past {n_bytes}", lanes[size > n_bytes])
    space = state.space("shared")
    writes.aligned(sel, target)
    places = space.places(sel, target, n_bytes)
    state.completions.check(sel, space, places, n_bytes, 1, False)
    used = np.flatnonzero(size > 0)
    filled = np.zeros((len(lanes), n_bytes), np.uint8)
    marks = np.full((len(lanes), n_bytes), FILLED, np.uint8)
    steps = np.arange(n_bytes)
    # A lane that reads nothing still writes zeros; its source address may be anything.
    zero = np.flatnonzero(size == 0)
    closed = state.completions.closed[GROUP]
    if len(zero):
        state.completions.start(Copy(
            GROUP, lanes[zero], space, places[zero, None] + steps, space,
            places[zero, None] + steps, filled[zero], marks[zero], closed[lanes[zero]], state.site,
        ))
    for where, store, at in reads.narrow_cells(lanes[used], source[used], size[used]):
        chosen = used[where]
        bytes_at = at[:, None] + np.minimum(steps, size[chosen][:, None] - 1)
        inside = steps < size[chosen][:, None]
        filled[chosen] = np.where(inside, store.data[bytes_at], 0)
        marks[chosen] = np.where(inside, store.valid[bytes_at], FILLED)
        state.completions.start(Copy(
            GROUP, lanes[chosen], store, bytes_at, space, places[chosen, None] + steps,
            filled[chosen], marks[chosen], closed[lanes[chosen]], state.site,
        ))


def _arrive_after_copies(build: Build) -> Step:
    """cp.async.mbarrier.arrive: the arrival happens once the lane's copies have landed."""
    build.take("arrive")
    extra = not build.take("noinc")
    build.take("shared", "shared::cta")
    build.take("b64")
    build.done(1)
    state, address = build.state, address_of(build, build.operand(0), "shared")

    def run(sel: Sel) -> None:
        lanes = build.lanes.index(sel).copy()
        places = state.mbarriers.places(sel, address(sel))
        if extra:
            state.mbarriers.add_pending(sel, places)

        def arrive() -> None:
            state.completions.wait_lanes(lanes)
            ones = np.ones(len(lanes), np.int64)
            state.mbarriers.arrive(lanes, places, ones, 0 * ones, False)

        state.completions.later(arrive)

    return Step(run)


def _bulk(build: Build) -> Step:
    completions = build.state.completions
    completions.watch_proxy()
    if build.take("commit_group"):
        build.done(0)
        return Step(lambda sel: completions.close_group(sel, BULK))
    if build.take("wait_group"):
        build.take("read")
        build.done(1)
        return _waits(build, BULK, build.integer(0))
    hinted = take_cache_words(build)
    if build.take("prefetch") or build.take("tensor"):
        raise build.refuse("tensor copies and prefetches are outside what the emulator runs")
    if build.take("bulk_group"):
        return _bulk_store(build, hinted)
    if not build.take("mbarrier::complete_tx::bytes"):
        raise build.refuse("needs .bulk_group or .mbarrier::complete_tx::bytes")
    build.take("shared::cluster", "shared::cta")
    build.take("global")
    build.done(4 + hinted)
    target = address_of(build, build.operand(0), "shared")
    source = address_of(build, build.operand(1), "global")
    size, barrier = build.read(build.operand(2), U32), address_of(build, build.operand(3), "shared")
    state = build.state

    def run(sel: Sel) -> None:
        places = state.mbarriers.places(sel, barrier(sel))
        state.mbarriers.touch(sel, places, False)
        for lane, to, start, n, place in _rows(build, sel, target, source, size, places):
            landed = _reporter(state, place, n)
            _start_bulk(build, BARRIER, lane, ("global", start), ("shared", to), n, landed)

    return Step(run)


def _reporter(state: Any, place: int, n_bytes: int) -> Callable[[Array], None]:
    return lambda lanes: state.mbarriers.complete(int(lanes[0]), place, n_bytes)


def _bulk_store(build: Build, hinted: bool) -> Step:
    build.take("global")
    build.take("shared::cta")
    build.done(3 + hinted)
    target = address_of(build, build.operand(0), "global")
    source = address_of(build, build.operand(1), "shared")
    size = build.read(build.operand(2), U32)

    def run(sel: Sel) -> None:
        none = np.zeros(len(build.lanes.numbers[sel]), np.int64)
        for lane, to, start, n, _ in _rows(build, sel, target, source, size, none):
            _start_bulk(build, BULK, lane, ("shared", start), ("global", to), n, None)

    return Step(run)


def _rows(
    build: Build, sel: Sel, target: Callable[[Sel], Array], source: Callable[[Sel], Array],
    size: Callable[[Sel], Array], places: Array,
) -> list[tuple[int, int, int, int, int]]:
    lanes = build.lanes.index(sel)
    sizes = np.broadcast_to(size(sel), len(lanes))
    columns = (lanes, target(sel), source(sel), sizes, places)
    return [
        (int(a), int(b), int(c), int(d), int(e)) for a, b, c, d, e in zip(*columns, strict=True)
    ]


def _start_bulk(
    build: Build, how: str, lane: int, source: tuple[str, int], target: tuple[str, int],
    n_bytes: int, landed: Callable[[Array], None] | None,
) -> None:
    state = build.state
    sel = np.array([lane])
    if n_bytes % 16 or not n_bytes:
        raise Fault("alignment", f"a bulk copy of {n_bytes} bytes, needs a multiple of 16", sel)
    ends = []
    for space, address in (source, target):
        if address % 16:
            raise Fault("alignment", "a bulk copy needs addresses that are multiples of 16", sel,
                        address)
        if space == "shared":
            store: Any = state.space("shared")
            place = int(store.places(sel, np.array([address], np.uint64), n_bytes)[0])
            state.completions.check(sel, store, np.array([place]), n_bytes, 1, False)
        else:
            try:
                store, place = state.memory.range(address, n_bytes)
            except Fault as fault:
                fault.lanes = sel
                raise
        ends.append((store, place + np.arange(n_bytes)[None, :]))
    (store, start), (into, to) = ends
    if target[0] == "global":
        state.check_output(into, sel, slice(None), to[:, 0], n_bytes, 1)
    group = state.completions.closed[BULK][sel] if how == BULK else np.zeros(1, np.int32)
    state.completions.start(Copy(
        how, sel, store, start, into, to, store.data[start], store.valid[start], group,
        state.site, landed,
    ))


@opcode("mbarrier")
def _mbarrier(build: Build) -> Step:
    what = build.take("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx",
                      "test_wait", "try_wait")
    expects = what == "arrive" and bool(build.take("expect_tx"))
    for words in (("shared::cta", "shared::cluster", "shared"), ("cta", "cluster"), ("b64",),
                  ("release", "relaxed", "acquire"), ("noComplete",)):
        build.take(*words)
    makers: dict[str | None, Callable[[Build], Step]] = {
        "init": _init, "inval": _inval, "expect_tx": _expect, "complete_tx": _expect,
        "arrive": lambda b: _arrive(b, expects, False),
        "arrive_drop": lambda b: _arrive(b, False, True), "test_wait": _test, "try_wait": _test,
    }
    if what not in makers:
        raise build.refuse("is an mbarrier operation outside what the emulator runs")
    return makers[what](build)


def _init(build: Build) -> Step:
    build.done(2)
    barriers, address = build.state.mbarriers, address_of(build, build.operand(0), "shared")
    count = build.read(build.operand(1), U32)

    def run(sel: Sel) -> None:
        places = barriers.places(sel, address(sel))
        barriers.init(sel, places, np.broadcast_to(count(sel), len(places)).astype(np.int64))

    return Step(run)


def _inval(build: Build) -> Step:
    build.done(1)
    barriers, address = build.state.mbarriers, address_of(build, build.operand(0), "shared")
    return Step(lambda sel: barriers.inval(sel, barriers.places(sel, address(sel))))


def _expect(build: Build) -> Step:
    sign = -1 if "complete_tx" in build.source.mods else 1
    build.done(2)
    barriers, address = build.state.mbarriers, address_of(build, build.operand(0), "shared")
    n_bytes = build.read(build.operand(1), U32)

    def run(sel: Sel) -> None:
        places = barriers.places(sel, address(sel))
        amounts = np.broadcast_to(n_bytes(sel), len(places)).astype(np.int64)
        barriers.expect(sel, places, amounts, sign)

    return Step(run)


def _arrive(build: Build, expects: bool, drops: bool) -> Step:
    build.done((2, 3) if not expects else 3)
    barriers, address = build.state.mbarriers, address_of(build, build.operand(1), "shared")
    put = build.write(build.operand(0), U64)
    kept = not isinstance(build.operand(0), Sink)
    third = build.operand(2) if len(build.source.operands) == 3 else Immediate(1, "int")
    amount = build.read(third, U32)

    def run(sel: Sel) -> None:
        places = barriers.places(sel, address(sel))
        given = np.broadcast_to(amount(sel), len(places)).astype(np.int64)
        ones, none = np.ones(len(places), np.int64), np.zeros(len(places), np.int64)
        count, n_bytes = (ones, given) if expects else (given, none)
        tokens = barriers.arrive(sel, places, count, n_bytes, drops)
        if kept:
            put(sel, tokens)

    return Step(run)


def _test(build: Build) -> Step:
    parity = bool(build.take("parity"))
    build.done((3, 4))
    barriers, address = build.state.mbarriers, address_of(build, build.operand(1), "shared")
    put = build.write(build.operand(0), PRED)
    token = build.read(build.operand(2), U32 if parity else U64)

    def run(sel: Sel) -> None:
        places = barriers.places(sel, address(sel))
        asked = np.broadcast_to(token(sel), len(places))
        put(sel, barriers.waited(sel, places, asked, parity))

    return Step(run, Flow.POLL, waits_for="an mbarrier's phase")
