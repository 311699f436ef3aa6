"""dequantise_int4_tiles: y = the rows of the weight whose tiles are w, each cell rounded to bf16

What `dequantise_int4_group128` makes of codes and scales, from the order that linears of few
tokens read (`ptx/weight_tiles.py`): one copy of a weight serves them and a GEMM.

shapes    w u8 [R, I, Q]; y bf16 [N, K]
domain    K = 128 R; N = 8 I; Q = 528; q -8 .. 7; scales finite, > 0; R, I >= 1; w and y start at
          multiples of 16 bytes
effects   writes all of y, which does not overlap w
rounding  the exact product, once to bf16, ties to even; subnormals are kept
"""

from ptx.op import Kernel, Launch, Op, Param, buf
from ptx.weight_tiles import ROWS, TILE_BYTES

# A thread of the tuned kernel has one word of a tile, which is eight cells, in so many groups.
WORDS = 4
MAX_GRID_Y = 65_535

OP = Op(
    name="dequantise_int4_tiles",
    params=(
        buf("w", "u8", "R I Q", align=16),
        buf("y", "bf16", "N K", out=True, align=16),
        Param("R", "u32"),
        Param("I", "u32"),
    ),
    tolerance="exact",
    kernels=(
        Kernel(
            "sm_80",
            lambda dims: Launch((dims["I"], -(-dims["R"] // WORDS)), 128),
            fits=lambda dims: dims["R"] <= MAX_GRID_Y,
            special=("fma.rn.bf16x2",),
            constants=lambda dims: {"words": WORDS},
        ),
        Kernel(
            "portable",
            lambda dims: Launch((dims["I"], dims["R"]), 128),
            fits=lambda dims: dims["R"] <= MAX_GRID_Y,
        ),
    ),
    requires={
        "N = 8 I": lambda dims: dims["N"] == ROWS * dims["I"],
        "K = 128 R": lambda dims: dims["K"] == 128 * dims["R"],
        "Q = 528": lambda dims: dims["Q"] == TILE_BYTES["int4"],
    },
    examples=({"R": 40, "I": 4352, "Q": 528, "N": 34816, "K": 5120},),
)
