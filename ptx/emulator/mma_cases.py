"""Owns what tests of mma share: fragments spelled out as the ISA's tables list them, and a kernel.

It must not know what the emulator makes of a fragment: nothing here imports from it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ptx.numerics import Array

LANES = range(32)
SMALL_FLOATS = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
# Bits of an element in a register, where they are not 8.
N_BITS = {"tf32": 32, "f16": 16, "s4": 4, "u4": 4, "e2m1": 4}
SCALES = ", s0, {0, 0}, s1, {0, 0}"
Place = tuple[int, int]
Element = Callable[[str, int, int], Place]


def a_element(kind: str, lane: int, i: int) -> Place:
    """Row and column of element i of A; a kind is the bits of an element and the depth."""
    g, t = lane // 4, lane % 4
    if kind == "f16k8":
        return (g if i < 2 else g + 8), 2 * t + (i & 1)
    if kind == "f16k16":
        return (g if i in (0, 1, 4, 5) else g + 8), 2 * t + (i & 1) + (8 if i >= 4 else 0)
    if kind == "b8k16":
        return (g if i < 4 else g + 8), 4 * t + (i & 3)
    if kind == "b8k32":
        return (g if i < 4 or 8 <= i < 12 else g + 8), 4 * t + (i & 3) + (16 if i >= 8 else 0)
    if kind == "b4k32":
        return (g if i < 8 else g + 8), 8 * t + (i & 7)
    if kind == "b4k64":
        return (g if i < 8 or 16 <= i < 24 else g + 8), 8 * t + (i & 7) + (32 if i >= 16 else 0)
    assert kind in ("tf32k4", "tf32k8")
    return (g if i in (0, 2) else g + 8), t + (4 if i >= 2 else 0)


def b_element(kind: str, lane: int, i: int) -> Place:
    """Row and column of element i of B."""
    g, t = lane // 4, lane % 4
    if kind in ("f16k8", "f16k16"):
        return 2 * t + (i & 1) + (8 if i >= 2 else 0), g
    if kind in ("b8k16", "b8k32"):
        return 4 * t + (i & 3) + (16 if i >= 4 else 0), g
    if kind in ("b4k32", "b4k64"):
        return 8 * t + (i & 7) + (32 if i >= 8 else 0), g
    assert kind in ("tf32k4", "tf32k8")
    return t + 4 * i, g


def c_element(lane: int, i: int) -> Place:
    """Row and column of element i of C and D."""
    return lane // 4 + (8 if i >= 2 else 0), 2 * (lane % 4) + (i & 1)


def packed(matrix: Array, element: Element, kind: str, n_values: int, n_bits: int) -> Array:
    """Codes of matrices [..., rows, columns] as registers [warps * 32, n], low elements first."""
    stack = matrix.reshape(-1, *matrix.shape[-2:])
    places = [[element(kind, lane, i) for i in range(n_values)] for lane in LANES]
    row, column = np.moveaxis(np.array(places), -1, 0)
    codes = stack[:, row, column].astype(np.uint64)
    per = 32 // n_bits
    shifts = np.arange(per, dtype=np.uint64) * np.uint64(n_bits)
    words = (codes.reshape(len(stack), 32, -1, per) << shifts).sum(axis=-1, dtype=np.uint64)
    return np.asarray(words.reshape(-1, words.shape[-1]).astype(np.uint32))


def run(
    bench: Any, line: str, a: Array, b: Array, c: Array, d_regs: int = 4,
    extra: Array | None = None, target: str = "sm_120a",
) -> Array:
    """Run one mma in each warp; registers a0.., b0.., c0.., d0.., s0, s1 come from the arrays."""
    buffers: dict[str, Array | int] = {"x": a, "y": b, "z": c, "w": 4 * len(a) * d_regs}
    if extra is not None:
        buffers["v"] = extra
    body = (".reg .b32 t, u; .reg .b64 at, off; mov.u32 u, %ctaid.x; mov.u32 t, %tid.x;\n"
            "mad.lo.u32 t, u, 32, t;\n")
    for name, letter, array in (("x", "a", a), ("y", "b", b), ("z", "c", c), ("v", "s", extra)):
        if array is None:
            continue
        n = array.shape[1]
        body += f".reg .b32 {letter}<{n}>; mul.wide.u32 off, t, {4 * n}; add.u64 at, {name}, off;\n"
        body += "".join(f"ld.global.b32 {letter}{r}, [at+{4 * r}];\n" for r in range(n))
    body += f".reg .b32 d<{d_regs}>;\n{line}\n"
    body += f"mul.wide.u32 off, t, {4 * d_regs}; add.u64 at, w, off;\n"
    body += "".join(f"st.global.b32 [at+{4 * r}], d{r};\n" for r in range(d_regs)) + "ret;"
    got = bench.kernel(body, buffers, grid=len(a) // 32, target=target, outputs=("w",))
    return np.asarray(got["w"].view(np.uint32).reshape(len(a), d_regs))


def names(letter: str, n: int) -> str:
    """A vector operand: `{a0, a1}`."""
    return "{" + ", ".join(f"{letter}{r}" for r in range(n)) + "}"


def unpacked(words: Array, dtype: Any = np.float32) -> Array:
    """D [..., 16, 8] from its registers [warps * 32, 4], or 2 of f16 pairs; one warp gives one."""
    values = np.ascontiguousarray(words).view(dtype).reshape(-1, 32, 4)
    out = np.zeros((len(values), 16, 8), dtype)
    for lane in LANES:
        for i in range(4):
            row, column = c_element(lane, i)
            out[:, row, column] = values[:, lane, i]
    return out[0] if len(out) == 1 else out


def c_words(matrix: Array) -> Array:
    """Registers of C [16, 8]."""
    cells = [[matrix[c_element(lane, i)] for i in range(4)] for lane in LANES]
    return np.array(cells, matrix.dtype).view(np.uint32)


def line_of(
    a: str, b: str, d: str, depth: int, kind: str = "", scales: str = "", mods: str = "",
    n_bits: int = 0,
) -> str:
    """An mma of types A, B and D = C whose registers are those of `run`."""
    n_bits = n_bits or N_BITS.get(a, 8)
    n, n_c = depth * n_bits // 128, 2 if d == "f16" else 4
    head = f"mma.sync.aligned.m16n8k{depth}.row.col{kind}{mods}.{d}.{a}.{b}.{d}{scales}"
    operands = [names(letter, n) for letter, n in (("d", n_c), ("a", 2 * n), ("b", n), ("c", n_c))]
    return f"{head} {', '.join(operands)}{SCALES if scales else ''};"
