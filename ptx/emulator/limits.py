"""Owns what a target allows: architectures in order, instructions, threads, shared memory.

It must not know ops. Contract: the PTX ISA's target notes for each instruction, and the compute
capability tables of the CUDA programming guide for shared memory.
"""

import re
from functools import cache
from math import prod

from ptx.emulator.errors import EmulatorError
from ptx.emulator.lanes import Dim3
from ptx.emulator.syntax import Kernel, Module

MAX_THREADS, MAX_BLOCK, MAX_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)
MAX_STATIC_SHARED, MAX_REGISTERS, REGISTER_FILE = 48 << 10, 255, 64 << 10
KIB_SHARED = {
    70: 96, 72: 96, 75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 90: 227, 100: 227, 101: 227,
    103: 227, 110: 227, 120: 99, 121: 99,
}
# (pattern of the dotted opcode, least architecture, architectures with `a` or `f` that have it).
NEEDS: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    (r"wgmma\.", 0, (90,)),
    (r"mma\..*(block_scale|kind::)", 0, (120, 121)),
    (r"setmaxnreg\.", 0, (90, 100, 101, 103, 110, 120, 121)),
    (r"cvt\..*(e2m1x2|ue8m0x2|e2m3x2|e3m2x2)", 0, (100, 101, 103, 110, 120, 121)),
    (r"(add|sub|mul|fma)\..*f32x2", 100, ()),
    (r"(ld|st)\..*(v8\.|v4\.[bu]64)", 100, ()),
    (r"clusterlaunchcontrol", 100, ()),
    (r"mma\..*(e4m3|e5m2)", 89, ()),
    (r"cvt\..*(e4m3x2|e5m2x2)", 89, ()),
    (r"(cp\.async\.bulk|cp\.reduce|stmatrix|elect|griddepcontrol|mapa)", 90, ()),
    (r"(st\.async|red\.async|barrier\.cluster|prefetch\..*tensormap)", 90, ()),
    (r"(mbarrier\..*(try_wait|expect_tx)|fence\.proxy\.async)", 90, ()),
    (r"(add|sub|mul)\.(?!.*f32).*bf16", 90, ()),
    (r"(ex2|tanh|set|setp)\..*bf16", 90, ()),
    (r"(add|min|max)\..*[us]16x2", 90, ()),
    (r"(min|max)\..*relu", 90, ()),
    (r"cvt\.(r.\.)?f32\.bf16$", 80, ()),
    (r"cvt\..*\.bf16$|cvt\..*\bbf16\.(?!f32)", 90, ()),
    (r"cvt\.r[nz]\..*tf32", 90, ()),
    (r"(min|max)\..*xorsign", 86, ()),
    (r"(atom|red)\..*bf16", 90, ()),
    (r"(cp\.async|mbarrier|createpolicy|redux)", 80, ()),
    (r"cvt\..*(bf16|tf32|relu|f16x2\.f32)", 80, ()),
    (r"(fma|min|max|abs|neg)\..*bf16", 80, ()),
    (r"(min|max)\..*(f16|NaN)", 80, ()),
    (r"fma\..*relu", 80, ()),
    (r"cvt\.pack", 72, ()),
    (r"mma\..*(bf16|tf32|m16n8k16|m16n8k32|m16n8k64)", 80, ()),
    (r"(mma|ldmatrix|movmatrix|tanh|ex2\..*f16)", 75, ()),
    (r"(match|nanosleep|fence|(atom|red)\..*\.f16)", 70, ()),
)


def number(arch: str) -> int:
    """90 of `sm_90a`."""
    return int(re.sub(r"\D", "", arch.partition("_")[2]))


def special(arch: str) -> bool:
    """Whether the name ends in a letter: features of one architecture or family."""
    return arch[-1:] in ("a", "f")


def check_module(module: Module, arch: str) -> None:
    """Refuse a module that a GPU of `arch` does not load."""
    target = module.target
    fits = number(target) <= number(arch) and (not special(target) or target == arch)
    if not fits:
        raise EmulatorError("limits", f"the module's target is {target}, the device is {arch}")


def check_code(module: Module, kernel: Kernel) -> None:
    """Refuse instructions that the module's own target does not have."""
    have, letter = number(module.target), special(module.target)
    for source in kernel.code:
        word = ".".join((source.opcode, *source.mods))
        least, owners = _need(word)
        if (owners and not (letter and have in owners)) or have < least:
            names = " or ".join(f"sm_{n}a" for n in owners) or f"sm_{least}"
            raise EmulatorError(
                "limits", f"needs {names}, the module's target is {module.target}",
                kernel=kernel.name, line=source.line, text=source.text,
            )


@cache
def _need(word: str) -> tuple[int, tuple[int, ...]]:
    """Of the first pattern that fits an opcode; words are few, instructions many."""
    for pattern, least, owners in NEEDS:
        if re.match(pattern, word):
            return least, owners
    return 0, ()


def check_launch(
    kernel: Kernel, arch: str, grid: Dim3, block: Dim3, static_bytes: int, dynamic_bytes: int
) -> None:
    """Refuse a launch that no GPU of `arch` takes; the message has the numbers."""
    n_threads = prod(block)
    limits = kernel.limits

    def refuse(what: str) -> EmulatorError:
        return EmulatorError("limits", what, kernel=kernel.name, line=kernel.line)

    if min(*grid, *block) < 1 or any(n > m for n, m in zip(block, MAX_BLOCK, strict=True)):
        raise refuse(f"block {block} of grid {grid}: each block axis is 1 to {MAX_BLOCK}")
    if any(n > m for n, m in zip(grid, MAX_GRID, strict=True)):
        raise refuse(f"grid {grid}, at most {MAX_GRID}")
    if n_threads > MAX_THREADS:
        raise refuse(f"{n_threads} threads in a CTA, at most {MAX_THREADS}")
    for name in ("reqntid", "maxntid"):
        bound = limits.get(name)
        if bound and name == "maxntid" and n_threads > prod(bound):
            raise refuse(f"{n_threads} threads in a CTA, .maxntid allows {prod(bound)}")
        if bound and name == "reqntid" and (*bound, 1, 1)[:3] != block:
            raise refuse(f"block {block}, .reqntid asks {bound}")
    if static_bytes > MAX_STATIC_SHARED:
        raise refuse(f"{static_bytes} bytes of static shared memory, at most {MAX_STATIC_SHARED}")
    most = KIB_SHARED.get(number(arch), 48) << 10
    if static_bytes + dynamic_bytes > most:
        raise refuse(f"{static_bytes + dynamic_bytes} bytes of shared memory, {arch} has {most}")
    n_registers = limits.get("maxnreg", (0,))[0]
    if n_registers > MAX_REGISTERS or n_registers * n_threads > REGISTER_FILE:
        raise refuse(f"{n_registers} registers for each of {n_threads} threads, "
                     f"at most {MAX_REGISTERS} and {REGISTER_FILE} in all")
