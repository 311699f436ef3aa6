"""Owns matrix descriptors of wgmma: what their bits say, and where a matrix lies in shared memory.

It must not know registers, nor what is computed. Contract: the PTX ISA's matrix descriptor and its
canonical layouts. An instruction takes 32 bytes of K, in runs of 16 bytes; a core matrix is 8 such
runs. The base offset moves where a swizzle's pattern begins; no card has confirmed it to us.
"""

from functools import lru_cache

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.formats import widen
from ptx.emulator.fragments import elements
from ptx.numerics import Array

RUN = 16
# Bytes that a row of a core matrix is away from the next, by the descriptor's mode; 16 is no
# swizzle, elsewhere the runs of so many bytes change places.
SPANS = {0: 16, 1: 128, 2: 64, 3: 32}
USED_BITS = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62
# Elements of 16 bits that an instruction takes along K: the only ones that may lie K last.
DEPTH_16 = 16


def addresses(descriptors: Array, n_rows: int, transposed: bool, lanes: Array) -> Array:
    """Shared addresses of runs of 16 bytes, one row for each descriptor.

    Of a matrix of `n_rows` along M or N: row after row, two runs each. `transposed`: each 8 rows
    after the other, a run of those 8 for each of 16 k. `lanes` are blamed, one a descriptor.
    """
    for lane, descriptor in zip(lanes, descriptors, strict=True):
        if int(descriptor) & ~USED_BITS:
            raise Fault("undefined", f"matrix descriptor {int(descriptor):#x} has bits outside its "
                        "fields", np.array([lane]))
    return np.stack([_addresses(int(d), n_rows, transposed) for d in descriptors])


@lru_cache(maxsize=4096)
def _addresses(descriptor: int, n_rows: int, transposed: bool) -> Array:
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    base, span = descriptor >> 49 & 7, SPANS[descriptor >> 62]
    plain = span == RUN
    if not transposed:
        row, half = np.indices((n_rows, 2))
        at = row % 8 * span + row // 8 * stride + half * (leading if plain else RUN)
    else:
        block, k = np.indices((n_rows // 8, DEPTH_16))
        at = k % 8 * span + k // 8 * (leading if plain else stride)
        # A span holds the runs of several blocks.
        n = span // RUN
        at = at + block % n * RUN + block // n * (stride if plain else leading)
    at = at.reshape(-1) + start
    line = (at >> 7) - base
    found: Array = at ^ (line & (span // RUN - 1)) << 4
    return found


def matrices(runs: Array, kind: str, n_rows: int, transposed: bool) -> Array:
    """Bytes [matrices, runs, 16] in the order of `addresses` as values [matrices, n_rows, K]."""
    n = len(runs)
    if transposed:
        halves = np.ascontiguousarray(runs).view(np.uint16)
        blocks = widen(halves, kind).reshape(n, n_rows // 8, DEPTH_16, 8)
        return np.ascontiguousarray(np.swapaxes(blocks, 2, 3)).reshape(n, n_rows, DEPTH_16)
    words = np.ascontiguousarray(runs).view(np.uint32).reshape(n, n_rows, 8)
    return elements(words, kind).reshape(n, n_rows, -1).astype(np.float64)
