"""Owns what changes no result: prefetch, discard, applypriority, createpolicy.

It must not know how memory is checked: that is `access.py`. Contract: the PTX ISA's instructions of
those names. An address outside memory is still wrong.
"""

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.decode import Build, Step, opcode
from ptx.emulator.formats import TYPES
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_memory import address_of, take_space
from ptx.emulator.ops_tensor import tensor_prefetch


@opcode("prefetch", "prefetchu", "discard", "applypriority")
def _prefetch(build: Build) -> Step:
    if build.take("tensormap"):
        return tensor_prefetch(build)
    hint_words = {"L1", "L2", "L2::128B"}
    build.mods = [m for m in build.mods if m not in hint_words and not m.startswith("L2::")]
    space = take_space(build)
    build.mods.clear()
    address = address_of(build, build.operand(0), space)
    access = Access(build.state, space, 1, 1)

    def run(sel: Sel) -> None:
        for _ in access.cells(sel, address(sel)):
            pass

    return Step(run)


@opcode("createpolicy")
def _createpolicy(build: Build) -> Step:
    build.mods.clear()
    put = build.write(build.operand(0), TYPES["b64"])
    return Step(lambda sel: put(sel, np.zeros((), np.uint64)))
