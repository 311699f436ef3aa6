"""linear_nvfp4: y[t,n] = sum_k x[t,k] w[n,k] / (x_global w_global)

where x[t,k] = code times x_scales[t,floor(k/16)], codes are e2m1, two in a byte of x_codes, the
even k in the low nibble, and w[n,k] the same of w_codes with its scales in w_tiles: `encode_nvfp4`
makes both, `pack_nvfp4_scales` the tiles. The global scales are divisors. K = 2 J.
Not run on hardware: no card of sm_120a has been at hand; sm_120a.ptx assembles and is right on the
emulator.

shapes    x_codes u8 [T, J]; x_scales e4m3 [T, R]; x_global f32 [1]; w_codes u8 [N, J];
          w_tiles e4m3 [I, P, Q]; w_global f32 [1]; y f32 [T, N]
domain    any codes; scales have no sign, a NaN makes its cells of y NaN; globals finite, > 0;
          K % 64 == 0, which is J = 8 R and R = 4 P; I = ceil(N / 128); Q = 512; T, N >= 1
effects   writes all of y; no overlap
rounding  products are exact in float32; sums are float32 in free order, which may depend on T, but
          not on what other rows hold; the sum times 1 / (x_global w_global), each step rounded
"""

from ptx.narrow_kernel import narrow
from ptx.nvfp4 import TILE_BYTES, TILE_GROUPS, TILE_ROWS
from ptx.op import Kernel, Launch, Op, Param, buf

WARPS_OF_A_BLOCK = 8  # of the portable kernel, one for each cell of a token's results
MAX_GRID_Y = 65_535

OP = Op(
    name="linear_nvfp4",
    params=(
        buf("x_codes", "u8", "T J", align=16),
        buf("x_scales", "e4m3", "T R", align=4),
        buf("x_global", "f32", "1"),
        buf("w_codes", "u8", "N J", align=16),
        buf("w_tiles", "e4m3", "I P Q", align=16),
        buf("w_global", "f32", "1"),
        buf("y", "f32", "T N", out=True),
        Param("T", "u32"),
        Param("N", "u32"),
        Param("J", "u32"),
    ),
    tolerance="f32_reduction",
    kernels=(
        narrow(
            "sm_120a", "8.7", "nvfp4",
            ("mma.sync.aligned.m16n8k64.kind::mxf4nvf4.block_scale", "ldmatrix", "cp.async"),
        ),
        Kernel(
            "portable",
            lambda dims: Launch(
                grid=(dims["T"], -(-dims["N"] // WARPS_OF_A_BLOCK)), block=32 * WARPS_OF_A_BLOCK
            ),
            fits=lambda dims: dims["N"] <= WARPS_OF_A_BLOCK * MAX_GRID_Y,
        ),
    ),
    requires={
        "K % 64 == 0 of K = 2 J": lambda dims: dims["J"] % 32 == 0,
        "J = 8 R": lambda dims: dims["J"] == 8 * dims["R"],
        "R = 4 P": lambda dims: dims["R"] == TILE_GROUPS * dims["P"],
        "I = ceil(N / 128)": lambda dims: dims["I"] == -(-dims["N"] // TILE_ROWS),
        "Q = 512": lambda dims: dims["Q"] == TILE_BYTES,
        "one x_global and one w_global": lambda dims: dims["1"] == 1,
    },
    examples=tuple(
        {"T": t, "J": 2560, "R": 320, "1": 1, "N": 34816, "I": 272, "P": 80, "Q": 512}
        for t in (1, 32, 64, 2048)
    ),
)
