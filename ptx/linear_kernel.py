"""Owns how the linear family's portable kernel is launched: one text, `linear/portable.ptx`.

It must not know which ops exist.
"""

from ptx.op import Kernel, Launch

ROWS_OF_A_BLOCK = 8  # one warp for each row of the weight
MAX_GRID_Y = 65_535


def portable(entry: str, weight: str, *, add: bool) -> Kernel:
    """The kernel under the name `entry` for a `weight` of f32, bf16, int8 or int4.

    It stores its output, or `add`s it.
    """
    return Kernel(
        "portable",
        lambda dims: Launch(grid=(dims["T"], -(-dims["N"] // ROWS_OF_A_BLOCK)), block=256),
        fits=lambda dims: dims["N"] <= ROWS_OF_A_BLOCK * MAX_GRID_Y,
        constants=lambda dims: {"entry": entry, "weight": weight, "add": add},
    )
