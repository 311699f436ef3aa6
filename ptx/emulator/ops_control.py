"""Owns control flow and barriers as steps: bra, ret, exit, bar, barrier, and harmless directives.

It must not know how lanes are scheduled: the machine acts on the steps' flow. Contract: the PTX
ISA's control flow and parallel synchronisation instructions.
"""

from dataclasses import dataclass

import numpy as np

from ptx.emulator.decode import Build, Flow, Step, opcode
from ptx.emulator.formats import TYPES
from ptx.emulator.lanes import Sel
from ptx.emulator.registers import Get, Put
from ptx.emulator.syntax import Symbol

U32, PRED = TYPES["u32"], TYPES["pred"]


def nothing(sel: Sel) -> None:
    """A step without effect."""


@dataclass
class BarrierCall:
    """What a bar instruction asks: its number, thread count (None: the whole CTA), and what for."""

    number: Get
    count: Get | None
    waits: bool
    reduces: str = ""
    value: Get | None = None
    put: Put | None = None


@opcode("bra")
def _bra(build: Build) -> Step:
    uniform = bool(build.take("uni"))
    build.done(1)
    label = build.operand(0)
    if not isinstance(label, Symbol) or label.name not in build.state.labels:
        raise build.refuse("the label is not in this kernel")
    return Step(nothing, Flow.BRANCH, build.state.labels[label.name], uniform=uniform)


@opcode("ret", "exit")
def _exit(build: Build) -> Step:
    build.take("uni")
    build.done(0)
    return Step(nothing, Flow.EXIT)


@opcode("bar", "barrier")
def _bar(build: Build) -> Step:
    aligned = build.source.opcode == "bar" or bool(build.take("aligned"))
    build.take("cta")
    if build.take("warp"):
        return _warp_barrier(build)
    if build.take("cluster"):
        return _cluster_barrier(build)
    what = build.take("sync", "arrive", "red")
    if what == "red":
        return _reducing(build, aligned)
    if what is None:
        raise build.refuse("needs .sync, .arrive or .red")
    build.done((1, 2) if what == "sync" else 2)
    number = build.read(build.operand(0), U32)
    count = build.read(build.operand(1), U32) if len(build.source.operands) == 2 else None
    call = BarrierCall(number, count, what == "sync")
    return Step(nothing, Flow.BARRIER, aligned=aligned, barrier=call, waits_for="a barrier")


def _reducing(build: Build, aligned: bool) -> Step:
    how = build.take("popc", "and", "or")
    type_ = build.take_type()
    build.done((3, 4))
    if how is None:
        raise build.refuse("needs .popc, .and or .or")
    *middle, last = build.source.operands[1:]
    count = build.read(middle[1], U32) if len(middle) == 2 else None
    call = BarrierCall(
        build.read(middle[0], U32), count, True, how, build.read(last, PRED),
        build.write(build.operand(0), type_),
    )
    return Step(nothing, Flow.BARRIER, aligned=aligned, barrier=call, waits_for="a barrier")


def _warp_barrier(build: Build) -> Step:
    build.take("sync")
    build.done(1)
    clocks = build.state.clocks
    mask = build.read(build.operand(0), U32)
    return Step(lambda sel: clocks.step_warps(sel), Flow.GATHER, mask=mask, waits_for="its warp")


def _cluster_barrier(build: Build) -> Step:
    """Clusters of one CTA: arrive says nothing to anybody else, wait is a barrier of the CTA."""
    what = build.take("arrive", "wait")
    build.take("release", "relaxed", "acquire")
    build.take("aligned")
    build.done(0)
    if what == "arrive":
        return Step(nothing)
    zero = np.zeros((), np.uint32)
    call = BarrierCall(lambda sel: zero, None, True)
    return Step(nothing, Flow.BARRIER, aligned=True, barrier=call, waits_for="a barrier")


@opcode("setmaxnreg")
def _setmaxnreg(build: Build) -> Step:
    build.take("inc", "dec")
    build.take("sync")
    build.take("aligned")
    build.take_type()
    build.done(1)
    n = build.integer(0)
    if not 24 <= n <= 256 or n % 8:
        raise build.refuse(f"{n} registers: needs 24 to 256 in steps of 8")
    # ptxas ignores the instruction otherwise: a thread bound alone leaves the registers open.
    limits = set(build.state.limits)
    shared_out = "minnctapersm" in limits and limits & {"maxntid", "reqntid"}
    if "maxnreg" not in limits and not shared_out:
        raise build.refuse("needs a register bound at entry: .maxnreg, or .minnctapersm with "
                           ".reqntid or .maxntid")
    full = np.array(0xFFFFFFFF, np.uint32)
    return Step(nothing, Flow.GATHER, mask=lambda sel: full, aligned=True, waits_for="its warp")


@opcode("griddepcontrol")
def _griddepcontrol(build: Build) -> Step:
    """One grid at a time runs here; `dependency.py` tells what may not be touched before a wait."""
    what, state = build.take("launch_dependents", "wait"), build.state
    build.done(0)
    if what is None:
        raise build.refuse("needs .launch_dependents or .wait")
    return Step(state.predecessor_ended if what == "wait" else nothing)
