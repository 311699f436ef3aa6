"""Owns who runs: the lanes of one batch of CTAs, their coordinates and special registers.

It must not know instructions or memory. Lanes are numbered through the batch, each CTA padded to
whole warps; a selection of lanes is a slice or an ascending index array.
"""

import numpy as np

from ptx.numerics import Array

Sel = slice | Array
Dim3 = tuple[int, int, int]
WARP = 32


class Lanes:
    """Geometry of a batch of `n_ctas` CTAs of `block` threads out of a `grid`."""

    def __init__(self, grid: Dim3, block: Dim3, n_ctas: int, shared_bytes: int) -> None:
        self.grid, self.block, self.n_ctas = grid, block, n_ctas
        self.n_threads = block[0] * block[1] * block[2]
        self.n_warps = -(-self.n_threads // WARP)
        self.n_lanes = n_ctas * self.n_warps * WARP
        self.numbers = np.arange(self.n_lanes)
        self.thread = (self.numbers % (self.n_warps * WARP)).astype(np.int32)
        self.cta = (self.numbers // (self.n_warps * WARP)).astype(np.int32)
        self.warp = self.thread // WARP
        self.global_warp = (self.numbers // WARP).astype(np.int32)
        self.lane = (self.numbers % WARP).astype(np.uint32)
        self.exists = self.thread < self.n_threads
        self.first_cta = 0
        self.all = slice(0, self.n_lanes)
        self.special: dict[str, Array] = {}
        self._fixed(shared_bytes)
        self.start(0)

    def start(self, first_cta: int) -> None:
        """Make the batch begin at a CTA; CTAs past the grid's end do not exist."""
        self.first_cta = first_cta
        number = self.cta + first_cta
        x, y, z = self.grid
        n_all = x * y * z
        self.exists = (self.thread < self.n_threads) & (number < n_all)
        for name, values in (
            ("x", number % x), ("y", number // x % y), ("z", number // (x * y))
        ):
            for word in (f"%ctaid.{name}", f"%clusterid.{name}"):
                self.special.setdefault(word, np.zeros(self.n_lanes, np.uint32))[:] = values
        self.special.setdefault("%smid", np.zeros(self.n_lanes, np.uint32))[:] = self.cta

    def cta_of(self, lane: int) -> Dim3:
        """Coordinates of a lane's CTA."""
        x, y, z = (int(self.special[f"%ctaid.{axis}"][lane]) for axis in "xyz")
        return x, y, z

    def index(self, sel: Sel) -> Array:
        """A selection as lane numbers."""
        numbers: Array = self.numbers[sel]
        return numbers

    def compact(self, index: Array) -> Sel:
        """The cheapest selection of ascending lane numbers: views are faster than gathers."""
        if len(index) and int(index[-1]) - int(index[0]) + 1 == len(index):
            return slice(int(index[0]), int(index[-1]) + 1)
        return index

    def _fixed(self, shared_bytes: int) -> None:
        def same(value: int) -> Array:
            return np.full(self.n_lanes, value, np.uint32)

        bx, by, _ = self.block
        thread = self.thread.astype(np.uint32)
        special = self.special
        special["%tid.x"], special["%tid.y"] = thread % bx, thread // bx % by
        special["%tid.z"] = thread // (bx * by)
        for axis, n_threads, n_blocks in zip("xyz", self.block, self.grid, strict=True):
            special[f"%ntid.{axis}"] = same(n_threads)
            special[f"%nctaid.{axis}"] = special[f"%nclusterid.{axis}"] = same(n_blocks)
            special[f"%cluster_ctaid.{axis}"] = same(0)
            special[f"%cluster_nctaid.{axis}"] = same(1)
        special["%cluster_ctarank"], special["%cluster_nctarank"] = same(0), same(1)
        special["%is_explicit_cluster"] = same(0)
        special["%laneid"], special["%warpid"] = self.lane, self.warp.astype(np.uint32)
        special["%nwarpid"], special["%nsmid"] = same(self.n_warps), same(self.n_ctas)
        special["%gridid"] = same(0)
        special["%dynamic_smem_size"] = special["%total_smem_size"] = same(shared_bytes)
        one = np.uint32(1) << self.lane
        special["%lanemask_eq"], special["%lanemask_lt"] = one, one - np.uint32(1)
        special["%lanemask_le"] = one | (one - np.uint32(1))
        special["%lanemask_gt"] = ~special["%lanemask_le"]
        special["%lanemask_ge"] = ~special["%lanemask_lt"]


def dim3(value: int | tuple[int, ...]) -> Dim3:
    """A launch dimension as three numbers."""
    numbers = (value,) if isinstance(value, int) else tuple(value)
    x, y, z = (*numbers, 1, 1, 1)[:3]
    return int(x), int(y), int(z)
