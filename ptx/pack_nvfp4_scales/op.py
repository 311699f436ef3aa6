"""pack_nvfp4_scales: tiles[i,p,q] = scales[128 i + row, 4 p + group], 0 where the row is past N

where q = 16 (row mod 32) + 4 floor(row / 32) + group: a tile is 128 rows by 4 groups, 512 bytes; a
row modulo 32 is a line of 16 bytes, its block of 32 rows a word there, the group a byte of that.
So the scales that one step of a block-scaled mma takes lie side by side. ptx/nvfp4.py has both
ways, `tile_scales` and `untile_scales`.

shapes    scales e4m3 [N, R]; tiles e4m3 [I, P, Q]
domain    any bytes; I = ceil(N / 128); R = 4 P; Q = 512; N >= 1
effects   writes all of tiles; no overlap
rounding  none
"""

from ptx.nvfp4 import TILE_BYTES, TILE_GROUPS, TILE_ROWS
from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="pack_nvfp4_scales",
    params=(
        buf("scales", "e4m3", "N R", align=4),
        buf("tiles", "e4m3", "I P Q", out=True, align=4),
        Param("N", "u32"),
        Param("P", "u32"),
    ),
    tolerance="exact",
    kernels=(
        Kernel("portable", lambda dims: Launch(grid=dims["I"] * dims["P"], block=TILE_ROWS)),
    ),
    requires={
        "I = ceil(N / 128)": lambda dims: dims["I"] == -(-dims["N"] // TILE_ROWS),
        "R = 4 P": lambda dims: dims["R"] == TILE_GROUPS * dims["P"],
        "Q = 512": lambda dims: dims["Q"] == TILE_BYTES,
    },
    examples=({"N": 17408, "R": 320, "I": 136, "P": 80, "Q": 512},),
)
