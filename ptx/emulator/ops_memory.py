"""Owns loads and stores: ld, st with vectors, param loads, fences.

It must not know how memory is checked: that is `access.py`. Contract: the PTX ISA's ld, st, membar
and fence.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.decode import Build, Flow, Step, opcode
from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES, Type
from ptx.emulator.lanes import Sel
from ptx.emulator.syntax import Address, Operand, Register, Symbol, Vector
from ptx.numerics import Array

SPACES = ("global", "shared::cta", "shared::cluster", "shared", "local", "param", "const")
SCOPES = ("cta", "cluster", "gpu", "sys")
ORDERS = ("volatile", "relaxed", "acquire", "release", "weak", "mmio")
VECTORS = {"v2": 2, "v4": 4, "v8": 8}
# Where data is cached changes no result here.
CACHE_WORDS = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified"}
AddressOf = Callable[[Sel], Array]


def take_cache_words(build: Build) -> bool:
    """Drop cache operators and hints; True when a policy operand follows."""
    hinted = "L2::cache_hint" in build.mods
    build.mods = [
        word for word in build.mods
        if word not in CACHE_WORDS and not word.startswith(("L1::", "L2::"))
    ]
    return hinted


def take_space(build: Build) -> str:
    """The state space of an access; shared::cta is shared, none is generic."""
    word = build.take(*SPACES)
    return word.partition("::")[0] if word else "generic"


def address_of(build: Build, operand: Operand, space: str) -> AddressOf:
    """A function from lanes to the addresses of an operand, uint64."""
    if not isinstance(operand, Address):
        raise build.refuse("needs an address in brackets")
    offset = np.uint64(operand.offset % 2**64)
    if isinstance(operand.base, Register):
        reg = build.registers.regs[operand.base.name]
        if reg.type.n_bits not in (32, 64):
            raise build.refuse(f"{reg.name} is a {reg.type.name}, no address")
        get = build.registers.reader(operand.base.name, TYPES[f"u{reg.type.n_bits}"])
        if reg.type.n_bits == 64:
            return lambda sel: get(sel) + offset if offset else get(sel)
        if space == "generic" or space in ("global", "const"):
            raise build.refuse(f"{reg.name} has 32 bits, an address here has 64")
        return lambda sel: get(sel).astype(np.uint64) + offset
    if isinstance(operand.base, Symbol):
        base = np.uint64(build.state.address_of(operand.base.name, build))
        if space == "generic":
            base += np.uint64(build.state.window_of(operand.base.name))
        fixed = base + offset
    else:
        fixed = offset
    return lambda sel: np.full(len(build.lanes.numbers[sel]), fixed, np.uint64)


def _shape(build: Build) -> tuple[Type, int, str, str, bool]:
    """Type, vector length, space, order and whether a policy operand follows."""
    type_ = build.take_type()
    if type_.kind == "pred" or (type_.n_packed == 2 and type_.n_bits != 128):
        raise build.refuse(f"{type_.name} cannot be loaded or stored")
    n = VECTORS[build.take(*VECTORS) or ""] if set(VECTORS) & set(build.mods) else 1
    hinted, space = take_cache_words(build), take_space(build)
    order = build.take(*ORDERS) or "weak"
    build.take(*SCOPES)
    return type_, n, space, order, hinted


@opcode("ld", "ldu")
def _ld(build: Build) -> Step:
    type_, n, space, order, hinted = _shape(build)
    build.done(3 if hinted else 2)
    if space == "param":
        return _ld_param(build, type_, n)
    width = type_.n_bits // 8
    if type_.n_bits == 128:
        raise build.refuse("b128 is loaded as v2.b64")
    target = build.operand(0)
    items = target.items if isinstance(target, Vector) else (target,)
    if len(items) != n:
        raise build.refuse(f"a vector of {len(items)}, expected {n}")
    puts = [build.write(item, type_, relaxed=True) for item in items]
    regs = [reg for reg in map(build.reg, items) if reg is not None]
    address, access = address_of(build, build.operand(1), space), Access(
        build.state, space, width, n, order not in ("weak",)
    )
    line, first, state = build.source.line, puts[0], build.state

    def run(sel: Sel) -> None:
        where = address(sel)
        values, fresh = access.load(sel, where)
        values = values.view(type_.dtype)
        if n == 1:
            first(sel, values)
        else:
            for at, put in enumerate(puts):
                put(sel, values[:, at])
        if fresh is not None:
            for reg in regs:
                reg.mark(sel, fresh, f"loaded in line {line}")
        if order != "weak":
            state.strong(sel, access, where, True, False, order)

    return Step(run, Flow.PLAIN if order == "weak" else Flow.POLL, waits_for="a flag in memory")


def _ld_param(build: Build, type_: Type, n: int) -> Step:
    operand, target = build.operand(1), build.operand(0)
    width, params = type_.n_bits // 8, build.state.params
    if not isinstance(operand, Address) or isinstance(operand.base, Register):
        raise build.refuse("a parameter is loaded by its name")
    base = build.state.address_of(operand.base.name, build) if operand.base else 0
    first = base + operand.offset
    if first % (width * n) or first < 0 or first + width * n > build.state.n_param_bytes:
        raise build.refuse(f"offset {first} is outside the parameters or off its alignment")
    items = target.items if isinstance(target, Vector) else (target,)
    if len(items) != n:
        raise build.refuse(f"a vector of {len(items)}, expected {n}")
    puts = [build.write(item, type_, relaxed=True) for item in items]

    def run(sel: Sel) -> None:
        for at, put in enumerate(puts):
            place = first + at * width
            put(sel, params.data[place : place + width].view(type_.dtype)[0])

    return Step(run)


@opcode("st")
def _st(build: Build) -> Step:
    type_, n, space, order, hinted = _shape(build)
    build.done(3 if hinted else 2)
    if space in ("param", "const"):
        raise build.refuse(f".{space} cannot be written")
    width = type_.n_bits // 8
    raw = TYPES[f"b{type_.n_bits}"]
    source = build.operand(1)
    gets = build.reads(source, raw, n, copies=True)
    items = source.items if isinstance(source, Vector) else (source,)
    regs = [reg for reg in map(build.reg, items) if reg is not None]
    address, access = address_of(build, build.operand(0), space), Access(
        build.state, space, width, n, order != "weak"
    )
    state = build.state

    def run(sel: Sel) -> None:
        where = address(sel)
        n_lanes = len(where)
        if n == 1:
            values = np.broadcast_to(gets[0](sel), n_lanes)
        else:
            values = np.stack([np.broadcast_to(get(sel), n_lanes) for get in gets], axis=1)
        fresh = None
        for reg in regs:
            if reg.taint is not None:
                taint = reg.taint[sel] > 0
                fresh = taint if fresh is None else fresh | taint
        if order != "weak":
            state.strong(sel, access, where, False, True, order)
        access.store(sel, where, values, fresh)
        state.progress += 1

    return Step(run)


@opcode("membar", "fence")
def _fence(build: Build) -> Step:
    words = set(build.mods)
    known = {"cta", "gl", "sys", "gpu", "cluster", "acq_rel", "sc", "proxy", "async", "alias",
             "acquire", "release", "mbarrier_init", "sync_restrict::shared::cta",
             "sync_restrict::shared::cluster", "shared::cta", "global", "shared::cluster",
             "async::global", "async::shared::cta", "async::generic", "tensormap::generic"}
    if words - known:
        raise build.refuse(f"modifier .{sorted(words - known)[0]} is outside what runs here")
    build.mods.clear()
    build.done(0)
    state = build.state
    if "proxy" in words:
        return Step(lambda sel: state.proxy_fence(sel))
    return Step(lambda sel: state.clocks.fence(sel))


@opcode("trap", "brkpt")
def _trap(build: Build) -> Step:
    build.done(0)

    def run(sel: Sel) -> None:
        raise Fault("undefined", "the kernel trapped", build.lanes.index(sel))

    return Step(run)


@opcode("nanosleep")
def _nanosleep(build: Build) -> Step:
    build.take_type()
    build.done(1)
    return Step(lambda sel: None)
