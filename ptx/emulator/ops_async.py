"""Owns asynchronous copies as instructions: cp.async with its groups, cp.async.bulk.

It must not know when copies land: that is `completions.py`; boxes of tensors are `ops_tensor.py`.
Contract: the PTX ISA's sections on
asynchronous copies.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.copies import BARRIER, BULK, GROUP, Copy
from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_memory import address_of, take_cache_words
from ptx.emulator.ops_tensor import tensor_load
from ptx.emulator.registers import Get
from ptx.emulator.syntax import Immediate, Operand
from ptx.numerics import Array

U32 = TYPES["u32"]


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


def _waits(build: Build, how: str, n_open: int | None, reads: bool = False) -> Step:
    completions = build.state.completions
    return Step(lambda sel: completions.wait_groups(sel, how, n_open, reads))


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
    size = _source_size(build, given, n_bytes)
    target = address_of(build, build.operand(0), "shared")
    source = address_of(build, build.operand(1), "global")
    reads, writes = (Access(build.state, space, n_bytes, 1) for space in ("global", "shared"))
    return Step(lambda sel: _start_group(build, sel, target(sel), source(sel), size(sel), reads,
                                         writes, n_bytes))


def _source_size(build: Build, given: Operand, n_bytes: int) -> Get:
    """How many bytes are read: as many as given, or none where a predicate says so."""
    reg = build.reg(given)
    if reg is None or reg.type.kind != "pred":
        return build.read(given, U32)
    ignores = build.read(given, TYPES["pred"])
    return lambda sel: np.where(ignores(sel), np.uint32(0), np.uint32(n_bytes))


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
    places, steps = space.places(sel, target, n_bytes), np.arange(n_bytes)
    closed = state.completions.closed[GROUP]

    def start(chosen: Array, store: Any, source_at: Array, inside: Array | None) -> None:
        state.completions.start(Copy(
            GROUP, lanes[chosen], store, source_at, space, places[chosen, None] + steps,
            closed[lanes[chosen]], state.site, inside,
        ))

    # A lane that reads nothing still writes zeros; its source address may be anything.
    zero, used = np.flatnonzero(size == 0), np.flatnonzero(size > 0)
    if len(zero):
        start(zero, None, places[zero, None] + steps, None)
    for where, store, at in reads.narrow_cells(lanes[used], source[used], size[used]):
        chosen = used[where]
        count = int(size[chosen[0]])
        source_at = at[:, None] + np.minimum(steps, count - 1)
        inside = None if count == n_bytes else np.broadcast_to(steps < count, source_at.shape)
        start(chosen, store, source_at, inside)


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
        state.mbarriers.touch(sel, places, False)
        if extra:
            state.mbarriers.add_pending(sel, places)
        state.completions.arrive_after(lanes, places)

    return Step(run)


def _bulk(build: Build) -> Step:
    completions = build.state.completions
    if build.take("commit_group"):
        build.done(0)
        return Step(lambda sel: completions.close_group(sel, BULK))
    if build.take("wait_group"):
        reads = bool(build.take("read"))
        build.done(1)
        return _waits(build, BULK, build.integer(0), reads)
    hinted = take_cache_words(build)
    if build.take("tensor"):
        return tensor_load(build, hinted)
    if build.take("prefetch"):
        return _bulk_prefetch(build, hinted)
    build.state.claims.watch_proxy()
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
            _start_bulk(build, BARRIER, lane, ("global", start), ("shared", to), n, place)

    return Step(run)


def _bulk_prefetch(build: Build, hinted: bool) -> Step:
    """Nothing to do, but what could not be copied is wrong here too."""
    if not build.take("L2"):
        raise build.refuse("needs .L2")
    build.take("global")
    build.done(2 + hinted)
    source, size = address_of(build, build.operand(0), "global"), build.read(build.operand(1), U32)

    def run(sel: Sel) -> None:
        none = np.zeros(len(build.lanes.numbers[sel]), np.int64)
        for lane, _, start, n, _ in _rows(build, sel, source, source, size, none):
            _bulk_end(build, np.array([lane]), "global", start, n)

    return Step(run)


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
            _start_bulk(build, BULK, lane, ("shared", start), ("global", to), n, -1)

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
    n_bytes: int, barrier_at: int,
) -> None:
    state, sel = build.state, np.array([lane])
    store, start = _bulk_end(build, sel, *source, n_bytes)
    into, to = _bulk_end(build, sel, *target, n_bytes)
    if target[0] == "global":
        state.check_output(into, sel, slice(None), to[:, 0], n_bytes, 1)
    group = state.completions.closed[BULK][sel] if how == BULK else np.zeros(1, np.int32)
    state.completions.start(Copy(
        how, sel, store, start, into, to, group, state.site, barrier_at=barrier_at,
    ))


def _bulk_end(
    build: Build, sel: Array, space: str, address: int, n_bytes: int
) -> tuple[Any, Array]:
    """Store and byte places [1, bytes] of one end of a bulk copy."""
    state = build.state
    if n_bytes % 16 or not n_bytes:
        raise Fault("alignment", f"a bulk copy of {n_bytes} bytes, needs a multiple of 16", sel)
    if address % 16:
        raise Fault("alignment", "a bulk copy needs addresses that are multiples of 16", sel,
                    address)
    if space == "shared":
        store: Any = state.space("shared")
        place = int(store.places(sel, np.array([address], np.uint64), n_bytes)[0])
    else:
        try:
            store, place = state.memory.range(address, n_bytes)
        except Fault as fault:
            fault.lanes = sel
            raise
    return store, place + np.arange(n_bytes)[None, :]
