"""Owns what tests of wgmma share: matrices laid out in shared memory, descriptors, and a kernel.

It must not know what the emulator makes of them: nothing here imports from it. A layout is built
tile by tile, as the ISA's figures show it, and a swizzle moves runs of 16 bytes within a tile.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ptx.emulator.mma_cases import names
from ptx.numerics import Array

MODES = {0: 0, 128: 1, 64: 2, 32: 3}
SWIZZLES = (0, 32, 64, 128)


class Placed(NamedTuple):
    """A matrix in shared memory: its bytes, and the descriptor but for the address."""

    image: Array
    bits: int


def descriptor(leading: int, stride: int, swizzle: int, base: int = 0) -> int:
    """All fields but the address; offsets in bytes."""
    return leading >> 4 << 16 | stride >> 4 << 32 | base << 49 | MODES[swizzle] << 62


def place_rows(matrix: Array, swizzle: int) -> Placed:
    """Codes [M or N, K] whose rows run along K, 32 bytes of K or, with a swizzle, more.

    Without a swizzle, core matrices of 8 rows by 16 bytes follow each other along K first.
    """
    cells = np.ascontiguousarray(matrix).view(np.uint8)
    n, width = cells.shape
    if not swizzle:
        cores = cells.reshape(n // 8, 8, width // 16, 16).swapaxes(1, 2)
        return Placed(np.ascontiguousarray(cores).reshape(-1), descriptor(128, 8 * width, 0))
    assert width % swizzle == 0
    tiles = cells.reshape(n, width // swizzle, swizzle // 16, 16).swapaxes(0, 1)
    image = np.zeros_like(tiles)
    for row in range(n):
        for run in range(swizzle // 16):
            image[:, row, run ^ phase(row, swizzle)] = tiles[:, row, run]
    return Placed(np.ascontiguousarray(image).reshape(-1), descriptor(16, 8 * swizzle, swizzle))


def place_columns(matrix: Array, swizzle: int) -> Placed:
    """16-bit codes [M or N, 16] whose columns run along M or N.

    Without a swizzle, a core matrix is 8 of K by 8 of M or N; with one, 8 of K by a whole span.
    """
    n, depth = matrix.shape
    span = swizzle or 16
    per = span // 2
    assert n % per == 0, "whole spans"
    tiles = np.ascontiguousarray(matrix.reshape(n // per, per, depth // 8, 8).transpose(0, 2, 3, 1))
    runs = tiles.view(np.uint8).reshape(n // per, depth // 8, 8, span // 16, 16)
    image = np.zeros_like(runs)
    for row in range(8):
        for run in range(span // 16):
            image[:, :, row, run ^ phase(row, swizzle)] = runs[:, :, row, run]
    along_n, along_k = 8 * span * (depth // 8), 8 * span
    leading, stride = (along_n, along_k) if swizzle else (along_k, along_n)
    return Placed(image.reshape(-1), descriptor(leading, stride, swizzle))


def phase(row: int, swizzle: int) -> int:
    """What a row's runs are exchanged by: 128 bytes of rows, whatever their span, share one."""
    return {0: 0, 32: row // 4 & 1, 64: row // 2 & 3, 128: row & 7}[swizzle]


def d_place(thread: int, i: int) -> tuple[int, int]:
    """Row and column of value i of D."""
    lane = thread % 32
    row = 16 * (thread // 32) + lane // 4 + (8 if i % 4 >= 2 else 0)
    return row, 8 * (i // 4) + 2 * (lane % 4) + i % 2


def to_threads(matrix: Array, threads: int = 128) -> Array:
    """D [64, N] as each thread's values [128, N / 2]."""
    n_values = matrix.shape[1] // 2
    cells = np.array([[d_place(t, i) for i in range(n_values)] for t in range(threads)])
    return np.asarray(matrix[cells[..., 0], cells[..., 1]])


def from_threads(values: Array) -> Array:
    """The way back."""
    n_threads, n_values = values.shape
    out = np.zeros((64, 2 * n_values), values.dtype)
    cells = np.array([[d_place(t, i) for i in range(n_values)] for t in range(n_threads)])
    out[cells[..., 0], cells[..., 1]] = values
    return out


def a_words(codes: Array, n_bits: int) -> Array:
    """A [64, K] as each thread's four registers [128, 4]: warps have 16 rows each."""
    per = 32 // n_bits
    found = np.zeros((128, 4), np.uint64)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for r in range(4):
            row = 16 * warp + lane // 4 + 8 * (r % 2)
            for e in range(per):
                k = 4 * per * (r // 2) + per * (lane % 4) + e
                found[thread, r] |= np.uint64(int(codes[row, k]) << (n_bits * e))
    return found.astype(np.uint32)


START = """
.reg .pred p, q, keep; .reg .b32 t, v, addr, s; .reg .b64 at, off, one, da<{n}>, db<{n}>;
.reg .b32 d<{n_d}>, a<4>;
.shared .align 1024 .b8 buf[{n_bytes}];
mov.u32 t, %tid.x;
mov.u32 addr, buf;
"""
FILL = """
mov.u32 s, t;
FILLING: setp.ge.u32 p, s, {n_words}; @p bra FILLED;
mul.wide.u32 off, s, 4; add.u64 at, x, off; ld.global.b32 v, [at];
mad.lo.u32 addr, s, 4, addr; st.shared.b32 [addr], v; mov.u32 addr, buf;
add.u32 s, s, 128; bra FILLING;
FILLED:
"""
PROXY = "fence.proxy.async.shared::cta;\n"
BARRIER = "bar.sync 0;\n"
FENCE = "wgmma.fence.sync.aligned;\n"
COMMIT = "wgmma.commit_group.sync.aligned;\n"
WAIT = "wgmma.wait_group.sync.aligned 0;\n"


def head(image: Array, n_d: int, n: int) -> str:
    """Declarations, and the image in shared memory, visible to all."""
    text = START.format(n=n, n_d=n_d, n_bytes=len(image)) + FILL.format(n_words=len(image) // 4)
    return text + PROXY + BARRIER


def descriptors(letter: str, offsets: Sequence[int], bits: int) -> str:
    """Registers `da0` and so on: matrices at offsets in `buf`."""
    text = ""
    for at, offset in enumerate(offsets):
        text += (f"add.u32 v, addr, {offset}; and.b32 v, v, 0x3FFFF; shr.u32 v, v, 4;\n"
                 f"cvt.u64.u32 d{letter}{at}, v; or.b64 d{letter}{at}, d{letter}{at}, {bits:#x};\n")
    return text


def load_registers(name: str, letter: str, n: int) -> str:
    """A thread's registers from a buffer [128, n]."""
    text = f"mul.wide.u32 off, t, {4 * n}; add.u64 at, {name}, off;\n"
    return text + "".join(f"ld.global.b32 {letter}{r}, [at+{4 * r}];\n" for r in range(n))


def store_registers(name: str, letter: str, n: int) -> str:
    """And back."""
    text = f"mul.wide.u32 off, t, {4 * n}; add.u64 at, {name}, off;\n"
    return text + "".join(f"st.global.b32 [at+{4 * r}], {letter}{r};\n" for r in range(n))


def line(form: str, n_d: int, a: str, b: str, rest: str) -> str:
    """One wgmma; `rest` are the constants after scale-d."""
    tail = f", {rest}" if rest else ""
    return (f"wgmma.mma_async.sync.aligned.{form} {names('d', n_d)}, {a}, {b}, keep{tail};\n")


def padded(*images: Array) -> tuple[Array, list[int]]:
    """Images one after the other, each at a multiple of 1024, and their offsets."""
    out, offsets = np.zeros(0, np.uint8), []
    for image in images:
        out = np.append(out, np.zeros(-len(out) % 1024, np.uint8))
        offsets.append(len(out))
        out = np.append(out, image)
    return np.append(out, np.zeros(-len(out) % 16, np.uint8)), offsets


def product(
    bench: Any, form: str, a: Placed | Array, b: Placed, start: Array | None, rest: str,
    steps: Sequence[tuple[int, int]] = ((0, 0),), **options: Any,
) -> Array:
    """D's registers [128, n] of A (in memory, or registers [128, 4]) times B, plus `start`.

    `steps` are offsets of A and B, one wgmma for each.
    """
    images = [m.image for m in (a, b) if isinstance(m, Placed)]
    image, offsets = padded(*images)
    n_d = n_of_d(form)
    text = head(image, n_d, len(steps)) + load_registers("z", "d", n_d)
    text += f"setp.eq.u32 keep, t, {'t' if start is not None else '9999'};\n"
    if isinstance(a, Placed):
        text += descriptors("a", [offsets[0] + step for step, _ in steps], a.bits)
    else:
        text += load_registers("y", "a", 4)
    text += descriptors("b", [offsets[-1] + step for _, step in steps], b.bits) + FENCE
    for at in range(len(steps)):
        left = f"da{at}" if isinstance(a, Placed) else names("a", 4)
        text += line(form, n_d, left, f"db{at}", rest)
    text += COMMIT + WAIT + store_registers("w", "d", n_d) + "ret;"
    # Without scale-d it must not matter what D was.
    words = np.full((128, n_d), 0x40404040, np.uint32) if start is None else start
    buffers: dict[str, Array | int] = {"x": image, "z": words, "w": 4 * 128 * n_d}
    if not isinstance(a, Placed):
        buffers["y"] = a
    got = bench.kernel(text, buffers, block=128, outputs=("w",), **options)
    return np.asarray(got["w"].view(np.uint32).reshape(128, n_d))


def n_of_d(form: str) -> int:
    """Registers of D of a form `m64n8k16.f32.bf16.bf16`."""
    n = int(form.split(".")[0].split("n")[1].split("k")[0])
    return n // (4 if form.split(".")[-3] == "f16" else 2)
