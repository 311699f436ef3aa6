"""Owns what must not grow while a process serves: how it is counted, and by how much it may.

It must not know requests. What a system does not tell is None and is not judged.
"""

import ctypes
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from engine.model import Model
from ptx.device import MemoryInfo
from ptx.devices.buffer import Allocation
from ptx.devices.cuda_context import Handle

Sample = dict[str, int | None]
STATUS, FILES, THREADS = Path("/proc/self/status"), Path("/proc/self/fd"), Path("/proc/self/task")
# What is nobody's between two cycles: none may be left at all.
EMPTY = frozenset({"sessions", "prefixes", "KV cells"})
# How much more than at the end of the warm-up. A graph whose shape comes late is a handle and some
# memory of the driver's; what Python's and the C library's allocators keep moves by a few MiB.
LIMITS: Mapping[str, int] = {
    "device bytes": 4 << 20, "host bytes": 32 << 20, "device handles": 8, "open files": 0,
    "threads": 0, "sessions": 0, "prefixes": 0, "KV cells": 0,
}


def sample(model: Model, memory_info: Callable[[], MemoryInfo]) -> Sample:
    """Everything counted now, what nobody needs any more collected first."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    info = memory_info()
    # By type alone: asking a proxy for its class may raise.
    held = sum(type(thing) in (Allocation, Handle) for thing in gc.get_objects())
    return {
        "device bytes": info.total_bytes - info.free_bytes,
        "host bytes": _own_bytes(), "device handles": held,
        "open files": _entries(FILES), "threads": _entries(THREADS),
        "sessions": len(model.sessions()), "prefixes": len(model.prefixes),
        "KV cells": model.pool.used_cells(),
    }


def _own_bytes() -> int | None:
    """Resident memory that is no file's."""
    try:
        rows = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
        return sum(1024 * int(rows[key].split()[0]) for key in ("RssAnon", "RssShmem"))
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _entries(folder: Path) -> int | None:
    """Entries of a folder; the one that reading it opens is gone again when it is counted next."""
    try:
        return len(os.listdir(folder))
    except OSError:
        return None


def growth(samples: Sequence[Sample], n_warm: int) -> dict[str, int]:
    """The most by which each count exceeds the last sample of the warm-up, or nothing left where
    there must be none; no count before one more sample is there."""
    if len(samples) <= n_warm:
        return {}
    before, later = samples[n_warm - 1], samples[n_warm:]
    found = {}
    for name in LIMITS:
        first = 0 if name in EMPTY else before[name]
        values = [one[name] for one in later]
        if first is not None and all(value is not None for value in values):
            found[name] = max(value - first for value in values if value is not None)
    return found


def too_much(grown: Mapping[str, int], judged: Sequence[str]) -> list[str]:
    """Sentences about those of `judged` that have grown beyond their limit."""
    return [
        f"{name}: {grown[name]} more than after the warm-up, at most {LIMITS[name]} allowed"
        for name in judged if grown.get(name, 0) > LIMITS[name]
    ]
