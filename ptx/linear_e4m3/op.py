"""linear_e4m3: y[t,n] = sum_k x[t,k] w[n,k] x_scales[t] w_scales[n]

where x[t,k] and w[n,k] are the values of the e4m3 codes x_codes[t,k] and w_codes[n,k], as
`encode_e4m3_rows` makes them: a scale for each row of both.

shapes    x_codes e4m3 [T, K]; x_scales f32 [T]; w_codes e4m3 [N, K]; w_scales f32 [N]; y f32 [T, N]
domain    any codes, and a NaN makes its cells of y NaN; scales finite; K % 64 == 0; T, N >= 1
effects   writes all of y; no overlap
rounding  products are exact in float32; sums are float32 in free order, which may depend on T, but
          not on what other rows hold; the sum times x_scales[t], then times w_scales[n]
          a card may cut what it sums in one instruction to 13 binary digits, so sums are restarted:
          KNOWLEDGE/findings/fp8-sums-are-restarted-every-64-of-k.md
"""

from collections.abc import Mapping

from ptx.narrow_kernel import narrow
from ptx.op import Constant, Dims, Kernel, Launch, Op, Param, buf

WARPS_OF_A_BLOCK = 8  # of the portable kernel, one for each cell of a token's results
MAX_GRID_Y = 65_535

# The kernel for few tokens. A warp multiplies tiles of 16 weight rows by all tokens over its share
# of K, with up to FLIGHT blocks of 16 rows by 64 bytes in flight; the warps' sums are added. Where
# a block reads two tiles of tokens it has two of rows, to read no more of tokens than of rows.
FEW_TOKENS, FLIGHT = 16, 4
ROW_TILES_OF_TOKEN_TILES = {1: 1, 2: 2}
MANY_ROWS = 12_288  # from here on there are blocks enough for fewer warps in each
WARPS_OF_MANY_ROWS, WARPS_OF_FEW_ROWS = 4, 8


def _token_tiles(dims: Dims) -> int:
    return -(-dims["T"] // 8)


def _row_tiles(dims: Dims) -> int:
    return ROW_TILES_OF_TOKEN_TILES[_token_tiles(dims)]


def _unroll(dims: Dims) -> int:
    """Blocks of 64 bytes of a row in flight: the most that divide the row's."""
    blocks = dims["K"] // 64
    return next(n for n in range(FLIGHT // _row_tiles(dims), 0, -1) if blocks % n == 0)


def _warps(dims: Dims) -> int:
    return WARPS_OF_MANY_ROWS if dims["N"] >= MANY_ROWS else WARPS_OF_FEW_ROWS


def _few(target: str) -> Kernel:
    """For up to FEW_TOKENS; on sm_90a a programmatic launch, and of fp8 made f16 as there."""
    pdl = target == "sm_90a"

    def constants(dims: Dims) -> Mapping[str, Constant]:
        return {
            "pdl": pdl, "row_tiles": _row_tiles(dims), "token_tiles": _token_tiles(dims),
            "warps": _warps(dims), "unroll": _unroll(dims),
        }

    return Kernel(
        target,
        lambda dims: Launch(
            grid=-(-dims["N"] // (16 * _row_tiles(dims))), block=32 * _warps(dims),
            programmatic=pdl,
        ),
        fits=lambda dims: dims["T"] <= FEW_TOKENS,
        special=("mma.sync.aligned.m16n8k16.f16", "cvt.rn.f16x2.e4m3x2", "griddepcontrol")
        if pdl else ("mma.sync.aligned.m16n8k32.e4m3",),
        constants=constants,
        form="few",
    )


OP = Op(
    name="linear_e4m3",
    params=(
        buf("x_codes", "e4m3", "T K", align=16),
        buf("x_scales", "f32", "T"),
        buf("w_codes", "e4m3", "N K", align=16),
        buf("w_scales", "f32", "N"),
        buf("y", "f32", "T N", out=True),
        Param("T", "u32"),
        Param("N", "u32"),
        Param("K", "u32"),
    ),
    tolerance="fp8_sums",
    kernels=(
        _few("sm_90a"),
        narrow(
            "sm_90a", "8.0", "e4m3",
            ("mma.sync.aligned.m16n8k16.f16", "cvt.rn.f16x2.e4m3x2", "ldmatrix", "cp.async"),
            widened=True,
        ),
        _few("sm_89"),
        narrow(
            "sm_89", "8.4", "e4m3",
            ("mma.sync.aligned.m16n8k32.e4m3", "ldmatrix", "cp.async"),
        ),
        Kernel(
            "portable",
            lambda dims: Launch(
                grid=(dims["T"], -(-dims["N"] // WARPS_OF_A_BLOCK)), block=32 * WARPS_OF_A_BLOCK
            ),
            fits=lambda dims: dims["N"] <= WARPS_OF_A_BLOCK * MAX_GRID_Y,
        ),
    ),
    requires={"K % 64 == 0": lambda dims: dims["K"] % 64 == 0},
    examples=(
        {"T": 1, "N": 34816, "K": 5120},
        {"T": 16, "N": 5120, "K": 17408},
        {"T": 32, "N": 34816, "K": 5120},
        {"T": 64, "N": 5120, "K": 17408},
        {"T": 2048, "N": 34816, "K": 5120},
    ),
)
