"""Owns how the portable kernel of tile moves is launched: one text, `repack_tiles/portable.ptx`.

It must not know which ops exist.
"""

from ptx.op import Kernel, Launch

MAX_GRID_X = 2**31 - 1
# The kernel counts the bytes of a tile in 32 bits, and past the last by up to a block.
MAX_TILE_BYTES = 2**31


def portable(entry: str, *, unpack: bool) -> Kernel:
    """The kernel under the name `entry`; into tile order, or out of it to `unpack`."""
    return Kernel(
        "portable",
        lambda dims: Launch(grid=dims["I"] * dims["J"], block=256),
        fits=lambda dims: (
            dims["I"] * dims["J"] <= MAX_GRID_X and dims["P"] * dims["Q"] <= MAX_TILE_BYTES
        ),
        constants=lambda dims: {"entry": entry, "unpack": unpack},
    )
