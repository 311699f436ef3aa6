"""Owns how the tensor-core kernel of linear ops with 8- and 4-bit operands is launched.

It must not know which ops exist. One text, `linear_narrow.ptx`, multiplies tiles of tokens by tiles
of rows; for it a row is bytes, 64 of them in a stage of the pipeline.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ptx.op import Constant, Dims, Kernel, Launch

# Bytes of a row in a stage, of a block of scales there (NVFP4: 128 rows by eight groups), and how
# many stages there are.
STAGE_ROW_BYTES, SCALE_TILE_BYTES, STAGES = 64, 1024, 4
MAX_GRID_Y = 65_535


@dataclass(frozen=True)
class Tile:
    """16-token tiles by 8-row tiles of a warp, and warps of a block both ways.

    Tiles along rows are 2, 4 or 8, and a block has at most 128 rows: a tile of NVFP4's scales.
    """

    token_tiles: int
    row_tiles: int
    token_warps: int
    row_warps: int

    @property
    def tokens(self) -> int:
        """Of a block."""
        return 16 * self.token_tiles * self.token_warps

    @property
    def rows(self) -> int:
        """Of a block."""
        return 8 * self.row_tiles * self.row_warps

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.token_warps * self.row_warps


# Tokens by rows: 16 by 64, 32 and 64 by 128 or, below so many rows, by 64, which gives blocks for
# more SMs, and 128 by 128.
MANY_ROWS = 16_896
TILES = (Tile(1, 2, 1, 4), Tile(2, 2, 1, 8), Tile(2, 4, 2, 4), Tile(4, 4, 2, 4))
TILES_OF_FEW_ROWS = (Tile(1, 2, 1, 4), Tile(2, 2, 1, 4), Tile(2, 2, 2, 4), Tile(4, 4, 2, 4))
# Blocks that an SM of sm_90 shall have registers for.
BLOCKS_PER_SM = 2


def tile_for(dims: Dims) -> Tile:
    """The smallest tile that takes all tokens, or the largest there is."""
    tiles = TILES if dims["N"] >= MANY_ROWS else TILES_OF_FEW_ROWS
    return next((tile for tile in tiles if dims["T"] <= tile.tokens), tiles[-1])


def narrow(
    target: str, version: str, codes: str, special: tuple[str, ...], widened: bool = False
) -> Kernel:
    """The kernel for operands of `codes`, "e4m3" or "nvfp4"; e4m3 may be `widened` to f16 first."""

    def launch(dims: Dims) -> Launch:
        tile = tile_for(dims)
        # Tokens run fastest over the blocks, so that rows being read stay in the cache for all.
        grid = (-(-dims["T"] // tile.tokens), -(-dims["N"] // tile.rows))
        return Launch(grid=grid, block=tile.threads, shared_bytes=STAGES * _stage_bytes(tile))

    def _stage_bytes(tile: Tile) -> int:
        scales = SCALE_TILE_BYTES + 8 * tile.tokens if codes == "nvfp4" else 0
        return STAGE_ROW_BYTES * (tile.tokens + tile.rows) + scales

    def constants(dims: Dims) -> Mapping[str, Constant]:
        tile = tile_for(dims)
        return {
            "target": target, "version": version, "codes": codes, "widened": widened,
            "stages": STAGES, "blocks_per_sm": BLOCKS_PER_SM if widened else 1,
            "token_tiles": tile.token_tiles, "row_tiles": tile.row_tiles,
            "token_warps": tile.token_warps, "row_warps": tile.row_warps,
            "stage_bytes": _stage_bytes(tile),
            # How often a thread copies 16 bytes of tokens, of rows, a word of the tokens' scales.
            "token_copies": -(-4 * tile.tokens // tile.threads),
            "row_copies": -(-4 * tile.rows // tile.threads),
            "scale_copies": -(-2 * tile.tokens // tile.threads),
        }

    return Kernel(
        target, launch, constants=constants, special=special,
        fits=lambda dims: -(-dims["N"] // tile_for(dims).rows) <= MAX_GRID_Y,
    )
