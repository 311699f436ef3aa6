"""Owns what the linear ops over bf16 activations and bf16 weights share: parameters, recipes.

It must not know which ops exist. A record is made of the epilogue, which is what becomes of the
products. The tuned texts, `gemm_sm_90a.ptx` and `gemm_sm_80.ptx`, are for many tokens; what their
constants mean is said there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ptx.op import Constant, Dims, Kernel, Launch, Param, TensorMap, buf

# The output and the letter of its width, for each epilogue.
OUTPUTS = {"none": ("y", "f32", "N"), "add": ("h", "f32", "N"), "swiglu": ("y", "bf16", "F")}
# Rows of x and of the output, and columns, are whole runs of 16 bytes.
UNIT = 8
Requires = Mapping[str, Callable[[Dims], bool]]
# Fewer tokens than a tile's rows waste the rest; up to this many have kernels of another form.
FEW_TOKENS = 16
WARPS_OF_A_BLOCK, MAX_GRID_Y = 8, 65_535

# Cells of K in a stage, which make the 128 bytes of a row of it.
TILE_K = 64
ROW_BYTES = 2 * TILE_K
# Tokens that are walked together, column of tiles after column, so that a wave of blocks shares few
# rows and columns.
GROUP_TOKENS = 2048

# sm_90a. Blocks that run at once, one for each multiprocessor of an H200.
BLOCKS = 132
# Shared memory for stages; a block has 227 KiB, of which alignment and mbarriers take some.
STAGE_BYTES = 225 << 10
MAX_STAGES = 8
# Tokens of a tile, and for each of them the narrowest and widest tile of w: what its sums leave of
# 240 registers decides.
WIDTHS = {128: (32, 256), 256: (64, 192)}
# The work is divided for the first of so many tokens that T does not exceed, or for the last: one
# text for each.
CHUNKS = (128, 512, 2048)
# What reading a row of a tile costs, in products of two rows. Assumed, not measured.
TRAFFIC = 64
# Pairs of blocks of 8 columns whose old cells `add` asks for at once, for few and for many sums.
BATCHES, FEW_SUMS = (4, 2), 128

# sm_80: tokens and rows of w in a tile, and stages, of which 99 KiB take three.
TILE_T_80, TILE_N_80, STAGES_80 = 128, 128, 3


@dataclass(frozen=True)
class Tiling:
    """How sm_90a divides the work: tokens and rows of w in a tile, stages in shared memory."""

    tile_t: int
    tile_n: int
    stages: int

    @property
    def stage_bytes(self) -> int:
        """A tile of x and one of the weights."""
        return (self.tile_t + self.tile_n) * ROW_BYTES


def params(epilogue: str) -> tuple[Param, ...]:
    """x, w, the output; T, the output's width, K."""
    name, dtype, width = OUTPUTS[epilogue]
    return (
        buf("x", "bf16", "T K", align=16),
        buf("w", "bf16", "N K", align=16),
        buf(name, dtype, f"T {width}", out=True, align=16),
        Param("T", "u32"),
        Param(width, "u32"),
        Param("K", "u32"),
    )


def requires(epilogue: str) -> Requires:
    """What rows of 16-byte runs ask, and that gate and up are as wide."""
    width = OUTPUTS[epilogue][2]
    whole: Requires = {
        f"K a multiple of {UNIT}": lambda dims: dims["K"] % UNIT == 0,
        f"{width} a multiple of {UNIT}": lambda dims: dims[width] % UNIT == 0,
    }
    if epilogue != "swiglu":
        return whole
    return {**whole, "N = 2 F": lambda dims: dims["N"] == 2 * dims["F"]}


def kernels(entry: str, epilogue: str) -> tuple[Kernel, ...]:
    """The kernels of many tokens under the name `entry`, best first, and the portable one."""
    return (_sm_90a(entry, epilogue), _sm_80(entry, epilogue), portable(entry, epilogue))


def portable(entry: str, epilogue: str) -> Kernel:
    """One warp for each cell."""
    width = OUTPUTS[epilogue][2]
    return Kernel(
        "portable",
        lambda dims: Launch(grid=(dims["T"], -(-dims[width] // WARPS_OF_A_BLOCK)), block=256),
        fits=lambda dims: dims[width] <= WARPS_OF_A_BLOCK * MAX_GRID_Y,
        constants=lambda dims: _words(entry, epilogue),
    )


def _words(entry: str, epilogue: str) -> dict[str, Constant]:
    name, _, width = OUTPUTS[epilogue]
    return {"entry": entry, "epilogue": epilogue, "output": name, "width": width}


def _columns(epilogue: str, tile_n: int) -> int:
    """Columns of the output that a tile makes: gate and up are two of the weights' for one."""
    return tile_n // 2 if epilogue == "swiglu" else tile_n


def tiling(epilogue: str, dims: Dims) -> Tiling:
    """The division that should take the least time; of T it depends on the place in CHUNKS."""
    step = 2 * UNIT if epilogue == "swiglu" else UNIT
    width = dims[OUTPUTS[epilogue][2]]
    chunk = next((n for n in CHUNKS if dims["T"] <= n), CHUNKS[-1])

    def cost(tile: tuple[int, int]) -> tuple[int, int]:
        tile_t, tile_n = tile
        tiles = -(-chunk // tile_t) * -(-width // _columns(epilogue, tile_n))
        waves = -(-tiles // BLOCKS)
        return waves * (tile_t * tile_n + TRAFFIC * (tile_t + tile_n)), -tile_n

    tile_t, tile_n = min(
        ((t, n) for t, (low, high) in WIDTHS.items() for n in range(low, high + 1, step)), key=cost
    )
    stages = min(MAX_STAGES, STAGE_BYTES // ((tile_t + tile_n) * ROW_BYTES))
    return Tiling(tile_t, tile_n, stages)


def _sm_90a(entry: str, epilogue: str) -> Kernel:
    width = OUTPUTS[epilogue][2]

    def launch(dims: Dims) -> Launch:
        found = tiling(epilogue, dims)
        columns = _columns(epilogue, found.tile_n)
        tiles = -(-dims["T"] // found.tile_t) * -(-dims[width] // columns)
        # Room to begin at a multiple of 1024, and two mbarriers for each stage.
        shared = 1024 + found.stages * (found.stage_bytes + 16)
        return Launch(min(BLOCKS, tiles), 3 * 128, shared)

    def constants(dims: Dims) -> Mapping[str, Constant]:
        found = tiling(epilogue, dims)
        return {
            **_words(entry, epilogue), "tile_t": found.tile_t, "tile_n": found.tile_n,
            "stages": found.stages, "columns": _columns(epilogue, found.tile_n),
            "group_rows": max(1, GROUP_TOKENS // found.tile_t),
            "batch": BATCHES[found.tile_t * found.tile_n // 256 > FEW_SUMS],
        }

    def maps(dims: Dims) -> tuple[TensorMap, ...]:
        found = tiling(epilogue, dims)
        rows = {"x": found.tile_t, "w": _columns(epilogue, found.tile_n)}
        return tuple(TensorMap(name, (n, TILE_K), ROW_BYTES) for name, n in rows.items())

    special: tuple[str, ...] = ("wgmma.mma_async", "cp.async.bulk.tensor", "mbarrier", "setmaxnreg")
    if epilogue == "swiglu":
        special += ("ex2.approx", "rcp.approx")
    return Kernel(
        "sm_90a", launch, fits=lambda dims: dims["T"] > FEW_TOKENS, special=special,
        constants=constants, maps=maps,
    )


def _sm_80(entry: str, epilogue: str) -> Kernel:
    width, columns = OUTPUTS[epilogue][2], _columns(epilogue, TILE_N_80)
    special: tuple[str, ...] = ("cp.async", "ldmatrix", "mma.sync")
    if epilogue == "swiglu":
        special += ("ex2.approx", "rcp.approx")

    def launch(dims: Dims) -> Launch:
        tiles = -(-dims["T"] // TILE_T_80) * -(-dims[width] // columns)
        return Launch(tiles, 256, STAGES_80 * (TILE_T_80 + TILE_N_80) * ROW_BYTES)

    return Kernel(
        "sm_80", launch, fits=lambda dims: dims["T"] > FEW_TOKENS, special=special,
        constants=lambda dims: {
            **_words(entry, epilogue), "columns": columns, "stages": STAGES_80,
            "group_rows": max(1, GROUP_TOKENS // TILE_T_80),
        },
    )
