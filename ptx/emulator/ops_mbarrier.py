"""Owns mbarrier instructions: init, inval, arrive, expect_tx, complete_tx, test_wait, try_wait.

It must not know how phases turn: that is `mbarriers.py`. Contract: the PTX ISA's mbarrier.
"""

from collections.abc import Callable

import numpy as np

from ptx.emulator.decode import Build, Flow, Step, opcode
from ptx.emulator.formats import TYPES
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_memory import address_of
from ptx.emulator.syntax import Immediate, Sink

U32, U64, PRED = TYPES["u32"], TYPES["u64"], TYPES["pred"]


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
