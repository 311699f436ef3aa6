"""Owns the table that is shown when nobody can go on: who waits where, and for what.

It must not know how lanes are chosen.
"""

from collections import defaultdict

import numpy as np

from ptx.emulator.batch import Batch
from ptx.emulator.errors import Fault
from ptx.numerics import Array

MAX_ROWS, MAX_WARPS = 12, 8


def deadlock(batch: Batch, pcs: Array, status: Array, alive: Array) -> Fault:
    """The fault for a batch whose living lanes all wait."""
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    stuck = np.flatnonzero(alive)
    for lane in stuck:
        rows[int(pcs[lane]), int(status[lane])].append(int(lane))
    lines = []
    for (pc, _), lanes in sorted(rows.items())[:MAX_ROWS]:
        what = batch.code[pc].waits_for or "somebody's progress"
        warps = sorted({int(batch.lanes.warp[lane]) for lane in lanes})
        lines.append(
            f"{len(lanes)} lanes, first CTA {batch.lanes.cta_of(lanes[0])}, "
            f"warps {warps[:MAX_WARPS]}: {batch.shown_site(pc)} waits for {what}"
        )
    batch.site = int(pcs[stuck[0]])
    return Fault("deadlock", "nobody can go on:\n  " + "\n  ".join(lines), stuck)
