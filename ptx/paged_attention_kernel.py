"""Owns what the records of paged_attention and its gated sibling share: parameters and kernels.

It must not know which ops exist. One text, `paged_attention_split.ptx`, serves both, with and
without a programmatic launch. Blocks are Z splits of the cells of each token and kv head; the last
one to be done merges. A merge of its own would be another launch in every layer, would wait for
the blocks of all kv heads, and would read positions again to know how many splits there are.
"""

from collections.abc import Mapping

from ptx.op import Constant, Dims, Kernel, Launch, Param, buf

# Cells of a page that the tuned text is written for: the M of one product of scores.
PAGE_CELLS = 16
# Query heads of a kv head at most: the N of a product.
MAX_HEADS = 8
WIDTHS = (64, 128, 256)
WARPS = 4
# Slots of a warp's ring, 2 or more, each one page of K or of V. With 3 of 8.25 KiB (E = 256) a
# block of four warps has 99 KiB: all that sm_86 to sm_120 let one have, and two fit on an SM of
# sm_90. A single token's blocks should be as many as there are SMs, one on each (Z = SMs / G):
# there 6.
SLOTS, SLOTS_OF_ONE_TOKEN = 3, 6
# Pages of a split at least: one for each warp.
MIN_RUN = 4
# Chains of products that a page's scores are summed in.
CHAINS = 2
# Splits at most, and how many of them a merge reads at once at most.
MAX_SPLITS, MAX_MERGE_ROWS = 128, 12
# How much of a line the L2 fetches for a copy, on sm_90a.
HINT = ".L2::256B"
MAX_GRID_YZ = 65_535


def params(gated: bool) -> tuple[Param, ...]:
    """q, with a gate or without, the pages, y, and the scratch of the splits."""
    return (
        buf("q", "f32", "T H E", align=16),
        *((buf("gate", "f32", "T H E", align=16),) if gated else ()),
        buf("k_pages", "bf16", "P G B E", align=16),
        buf("v_pages", "bf16", "P G B E", align=16),
        buf("pages", "i32", "S W"),
        buf("seq_of_token", "i32", "T"),
        buf("positions", "i32", "T"),
        buf("y", "bf16", "T H E", out=True, align=16),
        buf("parts", "f32", "T H Z E", out=True, partial=True, align=16, scratch=True),
        buf("peaks", "f32", "T H Z 2", out=True, partial=True, align=8, scratch=True),
        buf("arrived", "i32", "T G", out=True, partial=True),
        *(Param(axis, "u32") for axis in ("H", "G", "E", "B", "W", "Z")),
    )


REQUIRES = {
    "G divides H": lambda dims: dims["H"] % dims["G"] == 0,
    "E up to 256": lambda dims: dims["E"] <= 256,
    "two numbers of a peak": lambda dims: dims["2"] == 2,
}


def kernels(entry: str, gated: bool) -> tuple[Kernel, ...]:
    """The kernels under the name `entry`."""
    return (
        _split("sm_90a", entry, gated),
        _split("sm_80", entry, gated),
        Kernel(
            "portable",
            lambda dims: Launch(grid=(dims["T"], dims["H"]), block=32),
            constants=lambda dims: {
                "entry": entry, "gated": gated, "n_parts": -(-dims["E"] // 32)
            },
        ),
    )


def fits(dims: Dims) -> bool:
    """Pages of 16 cells, a width of the text's, up to 8 query heads a kv head, up to 128 splits."""
    return (
        dims["B"] == PAGE_CELLS
        and dims["E"] in WIDTHS
        and _heads(dims) <= MAX_HEADS
        and dims["Z"] <= MAX_SPLITS
        and dims["G"] <= MAX_GRID_YZ
    )


def _split(target: str, entry: str, gated: bool) -> Kernel:
    """The split text; on sm_90a a programmatic launch, and a deep ring for a single token."""
    hopper = target == "sm_90a"
    same: dict[str, Constant] = {
        "entry": entry, "gated": gated, "pdl": hopper, "hint": HINT if hopper else "",
        "version": "8.0" if hopper else "7.0", "target": target,
    }
    return Kernel(
        target,
        lambda dims: Launch(
            grid=(dims["T"], dims["Z"], dims["G"]),
            block=32 * WARPS,
            shared_bytes=WARPS * _slots(dims, hopper) * _slot_bytes(dims),
            programmatic=hopper,
        ),
        fits=fits,
        special=(
            "mma.sync", "ldmatrix", "cp.async", "ex2.approx",
            *(("griddepcontrol",) if hopper else ()),
        ),
        constants=lambda dims: {**same, **_plan(dims, _slots(dims, hopper))},
    )


def _plan(dims: Dims, slots: int) -> Mapping[str, Constant]:
    """Constants that follow from the dims."""
    heads, splits = _heads(dims), dims["Z"]
    rounds = -(-splits // MAX_MERGE_ROWS)
    return {
        "width": dims["E"], "heads": heads, "n_split": splits, "warps": WARPS, "slots": slots,
        "n_ids": (slots + 1) // 2 + 1, "min_run": MIN_RUN, "chains": CHAINS,
        "n_items": -(-heads * dims["E"] // 4 // (32 * WARPS)),
        "merge_rounds": rounds, "merge_rows": -(-splits // rounds),
    }


def _slots(dims: Dims, deep: bool) -> int:
    return SLOTS_OF_ONE_TOKEN if deep and dims["T"] == 1 else SLOTS


def _slot_bytes(dims: Dims) -> int:
    """A page of one head, each row 16 bytes longer than it holds."""
    return PAGE_CELLS * (2 * dims["E"] + 16)


def _heads(dims: Dims) -> int:
    return dims["H"] // dims["G"]
