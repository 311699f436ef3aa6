"""Owns the records of the ops that bring quantised weights into tile order and back.

It must not know which ops exist. The order is in `weight_tiles.py`, the text `weight_tiles.ptx`.
"""

from ptx.op import Dims, Kernel, Launch, Op, Param, buf
from ptx.weight_tiles import ROWS, TILE_BYTES

MAX_GRID_Y = 65_535


def op(name: str, weight: str, *, untile: bool, examples: tuple[Dims, ...]) -> Op:
    """A record: codes and scales into w, or out of it to `untile`."""
    is_int4 = weight == "int4"
    rows = (
        buf("codes", "u8" if is_int4 else "i8", "N J" if is_int4 else "N K", out=untile),
        buf("scales", "bf16", "N R", out=untile),
    )
    tiles = (buf("w", "u8", "R I Q", out=not untile),)
    width, n_bytes = ("J", 64) if is_int4 else ("K", 128)
    return Op(
        name=name,
        params=(*(tiles + rows if untile else rows + tiles), Param("R", "u32"), Param("I", "u32")),
        tolerance="exact",
        kernels=(
            Kernel(
                "portable",
                lambda dims: Launch((dims["I"], dims["R"]), 128),
                fits=lambda dims: dims["R"] <= MAX_GRID_Y,
                constants=lambda dims: {"entry": name, "weight": weight, "untile": untile},
            ),
        ),
        requires={
            "N = 8 I": lambda dims: dims["N"] == ROWS * dims["I"],
            f"{width} = {n_bytes} R": lambda dims: dims[width] == n_bytes * dims["R"],
            f"Q = {TILE_BYTES[weight]}": lambda dims: dims["Q"] == TILE_BYTES[weight],
        },
        examples=examples,
    )
