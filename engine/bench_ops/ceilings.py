"""Owns what the card can do at best, measured in the run that it judges: reads, copies.

It must not know cases. The best of several sizes of a block's part counts as the ceiling, for the
question is what the memory gives, not what one kernel makes of it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.bench_ops.timing import Effort, Launch, Spread, time_launches
from ptx.bench import copy_gb_per_s
from ptx.bench_cells import fill_random
from ptx.device import DeviceError
from ptx.devices.buffer import DeviceBuffer
from ptx.op import OpError
from ptx.read_bytes.op import OP as READ_BYTES
from ptx.read_bytes.op import THREADS, loads_of_a_thread

LINE_BYTES = 16
SIZES = (16 << 30, 1 << 30, 256 << 20, 64 << 20)
# Lines of a block's part that are tried: 16, 32 and 64 KiB.
PARTS = (1024, 2048, 4096)
# Of the free memory; the rest is left to whoever shares the card.
MOST_OF_FREE = 0.8


@dataclass(frozen=True)
class Reads:
    """Pure reads of `n_bytes`, in parts of `part_bytes`."""

    n_bytes: int
    part_bytes: int
    us: Spread

    @property
    def rate(self) -> float:
        """Bytes in a second."""
        return self.n_bytes / self.us.median * 1e6


def measure_reads(device: Any, effort: Effort) -> list[Reads]:
    """Reads of every size that the card's free memory holds, the largest first; maybe none.

    Smaller ones go through a large buffer by turns, so that the cache never has them.
    """
    free_bytes = device.memory_info().free_bytes * MOST_OF_FREE
    sizes = [n_bytes for n_bytes in SIZES if n_bytes <= free_bytes]
    if not sizes:
        return []
    whole = device.allocate((sizes[0] // (64 << 10), 64 << 10), "u8", "bytes to read")
    fill_random(device, whole, np.random.default_rng(0))
    return [_best(device, whole, n_bytes, effort) for n_bytes in sizes]


def _best(device: Any, whole: Any, n_bytes: int, effort: Effort) -> Reads:
    rows = n_bytes // (64 << 10)
    runs = [whole[at : at + rows] for at in range(0, len(whole), rows)][:64]
    found = [
        Reads(n_bytes, part * LINE_BYTES,
              time_launches(device, [read_of(device, run, part) for run in runs], effort))
        for part in PARTS
    ]
    return min(found, key=lambda reads: reads.us.median)


def read_of(device: Any, buffer: Any, n_lines: int = 0) -> Launch:
    """A launch that reads all of a buffer, in parts of `n_lines` lines of 16 bytes.

    Without a number the parts are of about 16 KiB. DeviceError when the bytes are no whole parts.
    """
    all_lines, rest = divmod(buffer.nbytes, LINE_BYTES)
    n_lines = n_lines or part_of(all_lines)
    if rest or not n_lines or all_lines % n_lines:
        raise DeviceError(f"{buffer.nbytes} bytes are no whole parts of {n_lines} lines to read")
    shape = (all_lines // n_lines, n_lines, 4)
    view = DeviceBuffer(device, buffer.address, shape, "u32", buffer.owner)
    sums = device.allocate(shape[:1], "u32", "sums")
    return partial(device.launch, READ_BYTES, x=view, sums=sums)


def part_of(n_lines: int) -> int:
    """Lines of a part near 16 KiB into which `n_lines` divide and that a block reads evenly, or 0.
    """
    fitting = [THREADS * n for n in range(1, 17) if n_lines % (THREADS * n) == 0]
    assert all(loads_of_a_thread(n) for n in fitting)
    return min(fitting, key=lambda n: abs(n - 1024), default=0)


def measure_copy(device: Any) -> float | None:
    """Bytes in a second that a copy reads and writes; None where there is no room."""
    try:
        return 1e9 * copy_gb_per_s(device)
    except (DeviceError, OpError):
        return None
