"""Owns member masks: which lanes of a warp a `.sync` instruction names, and whether they are there.

It must not know instructions or program counters.
"""

import numpy as np

from ptx.emulator.errors import Fault
from ptx.emulator.lanes import WARP, Lanes, Sel
from ptx.numerics import Array


def whole_warps(lanes: Lanes, sel: Sel) -> bool:
    """Whether a selection holds all 32 lanes of each warp it touches."""
    counts = np.bincount(lanes.global_warp[sel])
    return bool(((counts == 0) | (counts == WARP)).all())


def in_whole_groups(lanes: Lanes, index: Array, n_warps: int, alive: Array) -> Array:
    """For each lane of `index` whether all lanes of its group of `n_warps` warps are in `index`.

    Groups begin at ranks that are multiples of `n_warps`. Fault for a group that has not as many
    warps, or of which a lane has exited.
    """
    n_groups = -(-lanes.n_warps // n_warps)
    group = lanes.cta[index].astype(np.int64) * n_groups + lanes.warp[index] // n_warps
    of_all = lanes.cta.astype(np.int64) * n_groups + lanes.warp // n_warps
    living = np.bincount(of_all[alive], minlength=lanes.n_ctas * n_groups)
    gone = living[group] < n_warps * WARP
    if gone.any():
        raise Fault("barrier", f"needs {n_warps} whole warps from a rank that is a multiple of "
                    f"{n_warps}, here {int(living[group[int(np.argmax(gone))]])} threads are left",
                    index[gone])
    return np.asarray(np.bincount(group)[group] == n_warps * WARP)


def warp_bits(lanes: Lanes, index: Array) -> Array:
    """For each warp of the batch the bits of its lanes in `index`, int64."""
    bits = np.zeros(lanes.n_lanes // WARP, np.int64)
    np.add.at(bits, lanes.global_warp[index], np.int64(1) << (index % WARP))
    return bits


def complete_masks(lanes: Lanes, index: Array, mask: Array, alive: Array) -> Array:
    """For each lane of `index` whether all lanes that its mask names are in `index`.

    Lanes that the block never had do not count. Fault for a lane that its own mask leaves out, and
    for a named lane that has exited.
    """
    warp, lane = lanes.global_warp[index], index % WARP
    wide = np.broadcast_to(mask, len(index)).astype(np.int64)
    outside = (wide >> lane) & 1 == 0
    if outside.any():
        raise Fault("barrier", "a lane is not in its own member mask", index[outside])
    needed = wide & warp_bits(lanes, np.flatnonzero(lanes.exists))[warp]
    gone = needed & ~warp_bits(lanes, np.flatnonzero(alive))[warp]
    if gone.any():
        other = int(gone[int(np.argmax(gone != 0))]).bit_length() - 1
        raise Fault("barrier", f"lane {other} of its member mask has exited", index[gone != 0])
    return np.asarray(needed & ~warp_bits(lanes, index)[warp] == 0)
