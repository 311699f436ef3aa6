"""Owns what a kernel's text tells of how it must be run and watched.

It must not know batches nor any instruction's result.
"""

from ptx.emulator.formats import TYPES
from ptx.emulator.syntax import Instruction, Kernel

# Event 0 is the end of the grid ahead, the others phases of mbarriers; a CTA with more of them than
# there are events lets some share theirs.
N_EVENTS = 65


def communicates(kernel: Kernel) -> bool:
    """Whether CTAs may tell each other something: then all of the grid must run together."""
    return any(_is_flag(source) for source in kernel.code)


def _is_flag(source: Instruction) -> bool:
    ordered = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}
    if source.opcode in ("atom", "red"):
        return not {"shared", "shared::cta"} & set(source.mods)
    return source.opcode in ("ld", "st") and bool(ordered & set(source.mods)) and (
        "shared" not in source.mods
    )


def n_events(kernel: Kernel) -> int:
    """How many events the clocks count: none where nobody waits for other than warps."""
    reporting = {"mbarrier::complete_tx::bytes", "mbarrier::arrive", "mbarrier"}
    if any(source.opcode == "cp" and reporting & set(source.mods) for source in kernel.code):
        return N_EVENTS
    return int(any(source.opcode == "griddepcontrol" for source in kernel.code))


def narrowest(kernel: Kernel) -> int:
    """Bytes of the narrowest access to shared or global memory: what a race is judged by."""
    widths = [8]
    for source in kernel.code:
        if source.opcode in ("ld", "st", "atom", "red") and "param" not in source.mods:
            type_ = TYPES.get(source.mods[-1] if source.mods else "")
            widths.append(max(1, type_.n_bits // 8) if type_ else 1)
        elif source.opcode in ("ldmatrix", "stmatrix", "cp", "wgmma"):
            widths.append(4)
    return min(widths)
