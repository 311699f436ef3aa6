"""Owns atomics: atom and red on one location, lanes of one location one after the other.

It must not know how memory is checked. The order among lanes is the batch's. Contract: the PTX
ISA's atom and red.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.decode import Build, Flow, Step, opcode
from ptx.emulator.formats import Type, canonical, narrow, widen
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_memory import SCOPES, address_of, take_cache_words, take_space
from ptx.emulator.registers import Get
from ptx.emulator.syntax import Sink
from ptx.numerics import Array

Combine = Callable[[Array, Array, Array], Array]
TYPE_NAMES = {
    "u32", "s32", "b32", "u64", "s64", "b64", "b16", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"
}
ORDERS = ("relaxed", "acquire", "release", "acq_rel")


def _float_add(type_: Type) -> Combine:
    if type_.kind == "f32":
        return lambda old, b, c: canonical(old + b)
    if type_.kind == "f64":
        return lambda old, b, c: old + b
    return lambda old, b, c: narrow(widen(old, type_.kind) + widen(b, type_.kind), type_.kind)


COMBINES: dict[str, Combine] = {
    "add": lambda old, b, c: old + b,
    "min": lambda old, b, c: np.minimum(old, b),
    "max": lambda old, b, c: np.maximum(old, b),
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "inc": lambda old, b, c: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, b, c: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
}


@opcode("atom", "red")
def _atom(build: Build) -> Step:
    returns = build.source.opcode == "atom"
    build.take("async")
    type_ = build.take_type()
    build.take("noftz", "ftz")
    take_cache_words(build)
    space, order = take_space(build), build.take(*ORDERS) or "relaxed"
    build.take(*SCOPES)
    name = build.take(*COMBINES)
    if name is None or type_.name not in TYPE_NAMES:
        raise build.refuse("needs an operation and a type of 16 to 64 bits")
    n_values = 2 if name == "cas" else 1
    build.done(returns + 1 + n_values)
    combine = _float_add(type_) if type_.kind in ("f32", "f64", "f16", "bf16") else COMBINES[name]
    if type_.kind in ("f32", "f64", "f16", "bf16") and name != "add":
        raise build.refuse(f".{name} of {type_.name} is outside what the emulator runs")
    target = build.operand(0) if returns else Sink()
    put = build.write(target, type_)
    address = address_of(build, build.operand(int(returns)), space)
    values = [
        build.read(build.operand(returns + 1 + at), type_) for at in range(n_values)
    ]
    access = Access(build.state, space, type_.n_bits // 8, 1, strong=True)
    run = _runner(build, access, address, values, combine, type_)
    state = build.state
    reg = build.reg(target)

    def step(sel: Sel) -> None:
        where = address(sel)
        if order in ("release", "acq_rel", "relaxed"):
            state.strong(sel, access, where, False, True, order)
        old = run(sel)
        state.strong(sel, access, where, True, False, order)
        if reg is not None:
            put(sel, old)

    return Step(step, Flow.POLL if returns else Flow.PLAIN, waits_for="an atomic to succeed")


def _runner(
    build: Build, access: Access, address: Get, values: list[Get], combine: Combine, type_: Type
) -> Callable[[Sel], Array]:
    state, width = build.state, type_.n_bits // 8
    unit = type_.dtype.itemsize

    def run(sel: Sel) -> Array:
        where_all = address(sel)
        n = len(where_all)
        shape = (n, 2) if type_.n_packed == 2 else (n,)
        given = [np.broadcast_to(get(sel), shape) for get in values]
        b, c = given[0], given[-1]
        out = np.zeros(shape, type_.dtype)
        for where, store, cells in access.cells(sel, where_all):
            access.check_writable(store, sel, where, cells)
            state.watch(store, sel, where, cells, width, 1, True, True)
            state.check_written(store, sel, where, cells, width)
            view = store.view(unit).view(type_.dtype)
            if type_.n_packed == 2:
                view = view.reshape(-1, 2)
            old = out[where]
            _rounds(view, cells, b[where], c[where], combine, old, state)
            out[where] = old
            store.mark_written(width, cells)
        return out

    return run


def _rounds(
    view: Array, cells: Array, b: Array, c: Array, combine: Combine, old: Array, state: Any
) -> None:
    """Lanes of one cell take turns; lanes of different cells go together."""
    order = state.order(len(cells))
    ranked = order[np.argsort(cells[order], kind="stable")]
    runs = cells[ranked]
    starts = np.flatnonzero(np.append(True, runs[1:] != runs[:-1]))
    rank = np.arange(len(runs)) - np.repeat(starts, np.diff(np.append(starts, len(runs))))
    turns = ranked[np.argsort(rank, kind="stable")]
    begin = 0
    for count in np.bincount(rank):
        lanes = turns[begin : begin + count]
        begin += count
        at = cells[lanes]
        before = view[at]
        after = combine(before, b[lanes], c[lanes])
        old[lanes] = before
        if not np.array_equal(np.ascontiguousarray(before).view(np.uint8),
                              np.ascontiguousarray(after).view(np.uint8)):
            state.progress += 1
        view[at] = after
