"""Reference of `pack_nvfp4_scales`. The contract is in `op.py`."""

from ptx.numerics import Array
from ptx.nvfp4 import tile_scales


def pack_nvfp4_scales(scales: Array, tiles: Array) -> None:
    """scales e4m3 bits [N, R] into tile order, tiles [ceil(N / 128), R / 4, 512]."""
    tiles[...] = tile_scales(scales)
