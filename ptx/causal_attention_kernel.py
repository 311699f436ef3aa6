"""Owns what the records of causal attention share: parameters, requirements, kernels, recipes.

It must not know which ops exist. One text for each target serves the op with a gate and the one
without: those of `causal_attention/`.
"""

from collections.abc import Callable, Mapping

from ptx.op import Constant, Dims, Kernel, Launch, Param, buf

PAGE = 16  # cells of a page, for all kernels but the portable one
WARP = 32
MAX_GRID_Y = 65_535
MMA = ("mma.sync", "ldmatrix", "cp.async", "ex2.approx")

# Recipes by width of a head: warps (16 query rows each, at most E / 16 warps), cells of a key tile
# (a multiple of 16), stages in flight.
# Up to 99 KiB of shared memory, which the smallest GPUs that run sm_80 texts have.
SM_80 = {64: (4, 64, 2), 128: (4, 64, 2), 256: (4, 32, 2)}
# The same text where a block may have 227 KiB.
SM_90 = {64: (4, 64, 3), 128: (8, 64, 2), 256: (8, 64, 2)}
# For wgmma: cells of a key tile, stages in flight.
WGMMA = {64: (128, 2), 128: (128, 2), 256: (64, 2)}
WGMMA_ROWS = 128
# Registers of a thread: at entry, then of the 128 that copy and the 256 that multiply. What is
# taken is what is given: 3 x 168 = 40 + 2 x 232.
ENTRY_REGISTERS, COPY_REGISTERS, MULTIPLY_REGISTERS = 168, 40, 232


def params(gated: bool) -> tuple[Param, ...]:
    """q, the gate if there is one, pages, where sequences lie, y, and the lengths of axes."""
    return (
        buf("q", "f32", "T H E", align=16),
        *((buf("gate", "f32", "T H E", align=16),) if gated else ()),
        buf("k_pages", "bf16", "P G B E", align=16),
        buf("v_pages", "bf16", "P G B E", align=16),
        buf("pages", "i32", "S W"),
        buf("starts", "i32", "S+1"),
        buf("first", "i32", "S"),
        buf("y", "bf16", "T H E", out=True, align=16),
        Param("H", "u32"),
        Param("G", "u32"),
        Param("B", "u32"),
        Param("E", "u32"),
        Param("S", "u32"),
        Param("W", "u32"),
    )


REQUIRES: Mapping[str, Callable[[Dims], bool]] = {
    "one more cell in starts than sequences": lambda dims: dims["S+1"] == dims["S"] + 1,
    "G divides H": lambda dims: dims["H"] % dims["G"] == 0,
}
EXAMPLES: tuple[Dims, ...] = (
    {"T": 2048, "H": 24, "G": 4, "E": 256, "P": 128, "B": 16, "S": 1, "S+1": 2, "W": 128},
    {"T": 2048, "H": 9, "G": 3, "E": 64, "P": 128, "B": 16, "S": 1, "S+1": 2, "W": 128},
    {"T": 2048, "H": 24, "G": 4, "E": 256, "P": 2048, "B": 16, "S": 1, "S+1": 2, "W": 2048},
    {"T": 2048, "H": 32, "G": 8, "E": 128, "P": 128, "B": 16, "S": 1, "S+1": 2, "W": 128},
)


def n_tiles(dims: Dims, rows: int) -> int:
    """Tiles of up to `rows` rows, enough for any way to cut T rows into S sequences."""
    return min(dims["T"], dims["T"] // rows + dims["S"])


def portable(entry: str, gated: bool) -> Kernel:
    """The kernel for every dims, one warp for each row and head."""
    return Kernel(
        "portable",
        lambda dims: Launch(grid=(dims["T"], dims["H"]), block=WARP),
        special=("ex2.approx",),
        constants=lambda dims: {
            "entry": entry, "gated": gated, "n_parts": -(-dims["E"] // WARP)
        },
    )


def mma(
    entry: str, gated: bool, target: str, recipes: Mapping[int, tuple[int, int, int]],
    form: str = "",
) -> Kernel:
    """The kernel of `sm_80.ptx` under a target, with its recipes; on sm_90 as a programmatic one.
    """
    is_new = target != "sm_80"

    def launch(dims: Dims) -> Launch:
        warps, keys, stages = recipes[dims["E"]]
        row_bytes = 2 * dims["E"]
        return Launch(
            grid=(dims["H"], n_tiles(dims, 16 * warps)),
            block=WARP * warps,
            shared_bytes=(16 * warps + 2 * stages * keys) * row_bytes,
            programmatic=is_new,
        )

    def constants(dims: Dims) -> Mapping[str, Constant]:
        warps, keys, stages = recipes[dims["E"]]
        return {
            "entry": entry, "gated": gated, "pdl": is_new, "d_head": dims["E"], "warps": warps,
            "keys": keys, "stages": stages,
        }

    return Kernel(
        target, launch, lambda dims: _fits(dims, recipes),
        (*MMA, "griddepcontrol") if is_new else MMA, constants, form,
    )


def wgmma(entry: str, gated: bool) -> Kernel:
    """The kernel of `sm_90a.ptx`: one warpgroup copies, two multiply."""

    def launch(dims: Dims) -> Launch:
        keys, stages = WGMMA[dims["E"]]
        return Launch(
            grid=(dims["H"], n_tiles(dims, WGMMA_ROWS)),
            block=384,
            shared_bytes=(WGMMA_ROWS + 2 * stages * keys) * 2 * dims["E"],
            programmatic=True,
        )

    def constants(dims: Dims) -> Mapping[str, Constant]:
        keys, stages = WGMMA[dims["E"]]
        return {
            "entry": entry, "gated": gated, "d_head": dims["E"], "keys": keys, "stages": stages,
            "entry_registers": ENTRY_REGISTERS, "copy_registers": COPY_REGISTERS,
            "multiply_registers": MULTIPLY_REGISTERS,
        }

    return Kernel(
        "sm_90a", launch, lambda dims: _fits(dims, WGMMA),
        ("wgmma.", "setmaxnreg", "cp.async", "griddepcontrol", "ex2.approx"), constants,
    )


def _fits(dims: Dims, recipes: Mapping[int, object]) -> bool:
    # A tile has 64 rows or more.
    return dims["B"] == PAGE and dims["E"] in recipes and n_tiles(dims, 64) <= MAX_GRID_Y
