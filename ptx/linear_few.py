"""Owns what linear ops over bf16 activations and tiled weights share: records and recipes.

It must not know which ops exist. A record is made of the weight's format, of what becomes of x (it
is bf16, or the rmsnorm of f32) and of the epilogue. The tuned text is `linear_few.ptx`, for up to
16 tokens; what its constants mean is said there, what they were measured to be worth in KNOWLEDGE.
Long because the geometry of shared memory is one calculation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ptx.op import Constant, Dims, Kernel, Launch, Op, Param, buf
from ptx.weight_tiles import ROWS, TILE_BYTES

# Of a block of the portable kernel.
N_WARPS = 8
MAX_TOKENS = 16
GROUP = 128
MAX_GRID_Y = 65_535
# Each output and the letter of its width, for each epilogue.
OUTPUTS = {
    "none": {"y": "N"},
    "add": {"h": "N"},
    "swiglu": {"y": "F"},
    "split2": {"y0": "A", "y1": "B"},
    "split3": {"y0": "A", "y1": "B", "y2": "C"},
}
Requires = Mapping[str, Callable[[Dims], bool]]


@dataclass(frozen=True)
class Chip:
    """How launches are laid out on a kind of GPU.

    feed          how weights come: "bulk" copies by a warp of their own, or "cp.async"
    n_blocks      blocks of a launch; 0: one for each job's tiles
    wanted_bytes  shared memory of a block that leaves room for another, and shared_bytes all of it;
                  least_bytes is taken in any case, where two such blocks shall not meet on an SM
    max_tiles     tiles of a job, and least_tiles, below which there is no layout; max_stages: jobs
                  in flight for each warp; max_steps: steps of 16 rows whose sums a warp keeps, for
                  one product of 8 columns
    n_warps       warps among which K is split, the same in all layouts of a target: bits follow it
    n_shares      warps that share a ring, each with every other step of its jobs; both read the
                  digits that either makes, of all of x or of two groups at a time
    n_resident    blocks that an SM shall hold
    staged_bytes  the most that bf16 activations may take in shared memory
    tiles         of the launches that this layout is for: tiles of a block, of each bank
    tokens        the same: tokens
    x_bytes       the same: bytes of bf16 activations, 0 where x comes with a norm
    """

    arch: str
    ptx_version: str
    feed: str
    n_blocks: int
    wanted_bytes: int
    shared_bytes: int
    max_tiles: int = 10
    max_stages: int = 6
    max_steps: int = 10
    n_warps: int = 7
    n_shares: int = 1
    n_resident: int = 2
    staged_bytes: int = 40 << 10
    least_bytes: int = 0
    least_tiles: int = 1
    tiles: range = range(1 << 30)
    tokens: range = range(1, MAX_TOKENS + 1)
    x_bytes: range = range(1 << 30)


def _shares(max_tiles: int, max_steps: int, tokens: range, staged_bytes: int = 0) -> Chip:
    """Two warps to a ring, neither without a step: one block a multiprocessor, with all it has."""
    return Chip(
        "sm_90a", "8.0", "bulk", 132, 227 << 10, 227 << 10, max_tiles, max_steps=max_steps,
        n_shares=2, n_resident=1, staged_bytes=staged_bytes, least_tiles=3, tokens=tokens,
    )


# The first that is for a launch is taken. sm_90a, 132 multiprocessors of 228 KiB: two blocks of a
# launch on each where that leaves them enough tiles for an even end, or one; and beside one of
# either kind a block of the other, of the next launch, which fetches its first weights meanwhile.
# Three of the first kind do not fit, nor two of the second, so that an SM that is free early takes
# none from another: KNOWLEDGE/pitfalls/a-free-multiprocessor-takes-a-second-block.md
# sm_80: cards with 99 KiB a block, of any number of multiprocessors.
# sm_90a_shares: the same multiprocessors, one block on each, two warps a ring. A sibling that is
# tested and timed beside sm_90a wherever it fits, and tried before it where SHARED has the launch.
SHARES = "sm_90a_shares"
LAYOUTS: Mapping[str, tuple[Chip, ...]] = {
    "sm_90a": (
        # Down of 2 to 4 tokens and out of 4: an x that is staged is worth the second block.
        Chip(
            "sm_90a", "8.0", "bulk", 132, 227 << 10, 227 << 10, max_steps=8, n_resident=1,
            staged_bytes=160 << 10, tokens=range(2, 5), x_bytes=range(1 + (40 << 10), 160 << 10),
        ),
        Chip(
            "sm_90a", "8.0", "bulk", 264, 105 << 10, 105 << 10, 8, max_steps=9,
            tiles=range(6, 20), tokens=range(1, 3),
        ),
        Chip(
            "sm_90a", "8.0", "bulk", 132, 120 << 10, 227 << 10, max_steps=8, least_bytes=114 << 10
        ),
        # The digits of 16 tokens leave room for one pair of int8 tiles a job: parts of one, which
        # the 2,176 pairs of gate and up are without an empty one for 128 blocks.
        Chip("sm_90a", "8.0", "bulk", 128, 227 << 10, 227 << 10, 2, max_steps=4, n_resident=1),
    ),
    # A job has a step for either warp, or 3 tiles. bf16 cells are staged where one product of 8
    # columns has both digits of all tokens: else digits of two groups at a time take less room and
    # fewer instructions. Sums of 9 tokens and more take twice the registers: parts of two jobs of
    # few tiles, or else of one.
    SHARES: (
        _shares(10, 8, range(1, 5), staged_bytes=160 << 10),
        _shares(10, 8, range(5, 9)),
        _shares(8, 8, range(9, MAX_TOKENS + 1)),
        _shares(8, 4, range(9, MAX_TOKENS + 1)),
    ),
    "sm_80": (
        Chip("sm_80", "7.0", "cp.async", 0, 99 << 10, 99 << 10, 8, 4, n_warps=4, n_resident=1),
    ),
}

# Tokens for which launches take two warps to a ring, for each weight, epilogue and number of groups
# of K: those at which an H200 had that faster, and those between two such neighbours of what was
# timed. What is not here was slower, as fast, or not timed:
# KNOWLEDGE/findings/several-tokens-want-more-warps-on-the-same-rows.md
SHARED: Mapping[tuple[str, str, int], range] = {
    ("int4", "swiglu", 40): range(8, 13),
    ("int4", "split2", 40): range(4, 13),
    ("int4", "split3", 40): range(8, 13),
}


@dataclass(frozen=True)
class Form:
    """Which member of the family an op is."""

    weight: str
    epilogue: str
    normed: bool

    @property
    def n_banks(self) -> int:
        """Runs of tiles that a row block reads: gate's and up's for swiglu."""
        return 2 if self.epilogue == "swiglu" else 1


def params(form: Form) -> tuple[Param, ...]:
    """x, or h and its gain; the tiles; the outputs, their widths; K, I; the norm's scalars."""
    # What add reads and writes is called h; what a norm reads is the residual stream too.
    x: tuple[Param, ...] = (buf("x", "bf16", "T K", align=16),)
    if form.normed:
        x = (buf("x", "f32", "T K", align=16), buf("gain", "f32", "K", align=16))
    outputs = OUTPUTS[form.epilogue]
    dtype = "bf16" if form.epilogue == "swiglu" else "f32"
    return (
        *x,
        buf("w", "u8", "R I Q", align=16),
        *(buf(name, dtype, f"T {width}", out=True) for name, width in outputs.items()),
        *(Param(width, "u32") for width in outputs.values()),
        Param("K", "u32"),
        Param("I", "u32"),
        *((Param("eps", "f32"), Param("offset", "f32")) if form.normed else ()),
    )


def requires(form: Form) -> Requires:
    """What the shapes have to do with each other."""
    n_bytes = TILE_BYTES[form.weight]
    widths = tuple(OUTPUTS[form.epilogue].values())
    rows = "2 F" if form.epilogue == "swiglu" else " + ".join(widths)
    return {
        "K = 128 R": lambda dims: dims["K"] == GROUP * dims["R"],
        f"8 I = {rows}": lambda dims: (
            ROWS * dims["I"] == form.n_banks * sum(dims[width] for width in widths)
        ),
        f"Q = {n_bytes}": lambda dims: dims["Q"] == n_bytes,
        **({"F in whole tiles of 8 rows": lambda dims: dims["F"] % ROWS == 0}
           if form.epilogue == "swiglu" else {}),
    }


@dataclass(frozen=True)
class Geometry:
    """One launch: blocks, row blocks that each walks through, tiles of the largest, jobs in flight
    for each warp, and the places of what lies in shared memory."""

    n_blocks: int
    n_parts: int
    n_subs: int
    n_tiles: int
    n_stages: int
    n_warps: int
    n_shares: int
    staged: bool
    compact: bool
    slot_bytes: int
    x_at: int
    factors_at: int
    sums_at: int
    partials_at: int
    bars_at: int
    shared_bytes: int


def choose(form: Form, chips: tuple[Chip, ...], dims: Dims) -> tuple[Chip, Geometry] | None:
    """The layout for dims and its geometry, or None where shared memory has no room for any."""
    for chip in chips:
        tiles = dims["I"] // form.n_banks // max(1, chip.n_blocks)
        x_bytes = 0 if form.normed else 2 * dims["T"] * dims["K"]
        is_for = dims["T"] in chip.tokens and x_bytes in chip.x_bytes
        if is_for and (chip.n_blocks == 0 or tiles in chip.tiles):
            found = geometry(form, chip, dims)
            if found:
                return chip, found
    return None


def geometry(form: Form, chip: Chip, dims: Dims) -> Geometry | None:
    """One layout's geometry for dims, or None: the largest jobs, then most of them in flight."""
    least = ceil_div(chip.least_tiles, form.n_banks)
    for n_tiles in range(max(least, chip.max_tiles // form.n_banks), least - 1, -1):
        for n_bytes in (chip.wanted_bytes, chip.shared_bytes):
            for n_stages in range(chip.max_stages, 1, -1):
                found = _placed(form, chip, dims, n_tiles, n_stages)
                if found.shared_bytes <= n_bytes:
                    return found
    return None


def _placed(form: Form, chip: Chip, dims: Dims, most: int, n_stages: int) -> Geometry:
    """Jobs of at most `most` tiles of each bank, all as even as can be."""
    units = dims["I"] // form.n_banks
    n_blocks = min(units, chip.n_blocks or ceil_div(units, most))
    longest = ceil_div(units, n_blocks)
    x_bytes = 2 * dims["T"] * dims["K"]
    staged = form.normed or x_bytes <= chip.staged_bytes
    # One product of 8 columns has both digits of 4 tokens.
    compact = staged and dims["T"] <= 4
    n_panes = 1 if compact else 2 * ceil_div(dims["T"], 8)
    # Each of a warp's steps of 16 rows takes 4 registers a pane for as long as a part lasts.
    even = ceil_div(longest, ceil_div(longest, most))
    steps_of_job = rows_of_a_job(form, chip, even) // 16 // chip.n_shares
    jobs = max(1, chip.max_steps // n_panes // steps_of_job)
    n_subs = min(jobs, ceil_div(longest, most))
    # No part and no job of the shortest block may be empty: there is no copy of nothing.
    shortest = units // n_blocks
    n_parts = min(shortest, ceil_div(longest, n_subs * most))
    n_subs = min(n_subs, shortest // n_parts)
    n_tiles = ceil_div(ceil_div(longest, n_parts), n_subs)
    slot_bytes = form.n_banks * n_tiles * TILE_BYTES[form.weight]
    x_at = chip.n_warps * n_stages * slot_bytes
    # The digits of x and what they count; for the norm each warp's share of the squares.
    factors_at = x_at + (x_bytes if staged else _window_bytes(chip, dims["T"]))
    sums_at = factors_at + (_up_to_16(4 * dims["T"] * dims["R"]) if staged else 0)
    partials_at = sums_at + _up_to_16(4 * dims["T"] * chip.n_warps if form.normed else 0)
    n_columns = dims["T"] * (2 if compact else 1)
    n_sums = n_columns * n_subs * rows_of_a_job(form, chip, n_tiles)
    bars_at = partials_at + 4 * chip.n_warps * n_sums
    shared_bytes = max(chip.least_bytes, bars_at + 2 * 8 * chip.n_warps * n_stages)
    return Geometry(
        n_blocks, n_parts, n_subs, n_tiles, n_stages, chip.n_warps, chip.n_shares, staged, compact,
        slot_bytes, x_at, factors_at, sums_at, partials_at, bars_at, shared_bytes,
    )


def _window_bytes(chip: Chip, n_tokens: int) -> int:
    """Where x is not staged: digits and factors of two groups of each ring that warps share."""
    if chip.n_shares == 1:
        return 0
    return chip.n_warps * chip.n_shares * ceil_div(n_tokens, 8) * 8 * (2 * GROUP + 4)


def _up_to_16(n_bytes: int) -> int:
    return 16 * ceil_div(n_bytes, 16)


def ceil_div(n: int, by: int) -> int:
    """n / by, rounded up."""
    return -(-n // by)


def rows_of_a_job(form: Form, chip: Chip, n_tiles: int) -> int:
    """Rows of partial results of a ring's job: as many steps of 16 for each warp that shares it."""
    n_steps = n_tiles if form.n_banks == 2 else ceil_div(n_tiles, 2)
    return 16 * chip.n_shares * ceil_div(n_steps, chip.n_shares)


def op(
    name: str, weight: str, epilogue: str, normed: bool, examples: tuple[Dims, ...],
    chips: Mapping[str, tuple[Chip, ...]] = LAYOUTS,
) -> Op:
    """The record of a member; `examples` give T, K and the widths."""
    form = Form(weight, epilogue, normed)
    return Op(
        name=name,
        params=params(form),
        tolerance="bf16_output" if epilogue == "swiglu" else "f32_reduction",
        kernels=(
            *(_tuned(name, form, stem, layouts) for stem, layouts in chips.items()),
            _portable(name, form),
        ),
        requires=requires(form),
        examples=tuple(_with_tiles(form, dims) for dims in examples),
    )


def _with_tiles(form: Form, dims: Dims) -> Dims:
    widths = OUTPUTS[form.epilogue].values()
    n_rows = form.n_banks * sum(dims[width] for width in widths)
    tiles = {"R": dims["K"] // GROUP, "I": n_rows // ROWS, "Q": TILE_BYTES[form.weight]}
    return {"T": dims["T"], "K": dims["K"], **tiles, **{w: dims[w] for w in widths}}


def _tuned(name: str, form: Form, stem: str, chips: tuple[Chip, ...]) -> Kernel:
    target = chips[0].arch
    is_bulk = chips[0].feed == "bulk"
    special = ("cp.async.bulk", "griddepcontrol") if is_bulk else ("cp.async",)

    def launch(dims: Dims) -> Launch:
        chip, found = _chosen(form, chips, dims)
        # With bulk copies one warp more fills the rings.
        n_warps = chip.n_shares * chip.n_warps + is_bulk
        return Launch(found.n_blocks, 32 * n_warps, found.shared_bytes, is_bulk)

    return Kernel(
        target, launch, form=stem.removeprefix(target).lstrip("_"),
        fits=lambda dims: dims["T"] <= MAX_TOKENS and choose(form, chips, dims) is not None,
        # Integer products are exact, so that a card and the emulator have equal bits.
        special=(*special, "mma (s8)"),
        constants=lambda dims: _constants(name, form, chips, dims),
        leads=lambda dims: stem == SHARES and _is_faster_shared(form, dims),
    )


def _is_faster_shared(form: Form, dims: Dims) -> bool:
    return dims["T"] in SHARED.get((form.weight, form.epilogue, dims["R"]), ())


def _chosen(form: Form, chips: tuple[Chip, ...], dims: Dims) -> tuple[Chip, Geometry]:
    found = choose(form, chips, dims)
    assert found is not None, dims
    return found


def _constants(
    name: str, form: Form, chips: tuple[Chip, ...], dims: Dims
) -> Mapping[str, Constant]:
    chip, found = _chosen(form, chips, dims)
    # Sums of more columns take more registers than two blocks would leave.
    shares = found.shared_bytes <= chip.wanted_bytes and found.compact and dims["T"] <= 3
    return {
        **_named(name, form), "target": chip.arch, "ptx_version": chip.ptx_version,
        "bulk": chip.feed == "bulk", "n_resident": chip.n_resident if shares else 1,
        "n_tokens": dims["T"], "n_groups": dims["R"], "tile_bytes": TILE_BYTES[form.weight],
        **{key: value for key, value in vars(found).items() if key != "shared_bytes"},
    }


def _named(name: str, form: Form) -> Mapping[str, Constant]:
    return {
        "entry": name, "weight": form.weight, "epilogue": form.epilogue, "normed": form.normed,
        "outputs": " ".join(OUTPUTS[form.epilogue]),
        "widths": " ".join(OUTPUTS[form.epilogue].values()),
    }


def _cells_of_a_token(form: Form, dims: Dims) -> int:
    return sum(dims[width] for width in OUTPUTS[form.epilogue].values())


def _portable(name: str, form: Form) -> Kernel:
    return Kernel(
        "portable",
        lambda dims: Launch((dims["T"], ceil_div(_cells_of_a_token(form, dims), N_WARPS)), 256),
        fits=lambda dims: _cells_of_a_token(form, dims) <= N_WARPS * MAX_GRID_Y,
        constants=lambda dims: _named(name, form),
    )
