"""Owns how the portable kernel of the row copies is launched: one text, `copy_rows/portable.ptx`.

It must not know which ops exist.
"""

from ptx.numerics import DTYPES
from ptx.op import Kernel, Launch

THREADS = 256  # cells of a row that one block copies
MAX_GRID_Y = 65_535


def portable(entry: str, cell: str) -> Kernel:
    """The kernel under the name `entry` for rows of `cell`s."""
    return Kernel(
        "portable",
        lambda dims: Launch(grid=(-(-dims["W"] // THREADS), dims["N"]), block=THREADS),
        fits=lambda dims: dims["N"] <= MAX_GRID_Y,
        constants=lambda dims: {"entry": entry, "cell": cell, "n_bytes": DTYPES[cell].itemsize},
    )
