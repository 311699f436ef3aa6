"""Owns linear ops of up to 16 tokens over bf16 weights in plain rows: records and recipes.

It must not know which ops exist. What becomes of x (it is bf16, or the rmsnorm of f32) and the
epilogue make a member. The tuned text is `bf16_few.ptx`; what its constants mean is said there.
Long because the geometry of shared memory is one calculation.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial

from ptx.op import Constant, Dims, Kernel, Launch, Op, Param, buf

MAX_TOKENS = 16
# Cells of K that one step of a warp takes; rows of w and of x are whole runs of 16 bytes.
STEP, UNIT = 32, 8
# Of shared memory, rows whose length is a multiple of this get 64 bytes more: no bank twice.
LINE_BYTES = 128
WARPS_OF_A_BLOCK, MAX_GRID_Y = 8, 65_535
# Registers for a thread's cells of x and for their gains while x is staged: of a block that shares
# the multiprocessor with the next launch's, and of one alone.
STAGED_REGISTERS = {2: 64, 1: 120}
# Each output and the letter of its width, for each epilogue.
OUTPUTS = {
    "none": {"y": "N"},
    "add": {"h": "N"},
    "swiglu": {"y": "F"},
    "split2": {"y0": "A", "y1": "B"},
    "split3": {"y0": "A", "y1": "B", "y2": "C"},
}


@dataclass(frozen=True)
class Chip:
    """Geometry for one target: blocks that share the rows, shared bytes of a block that are wanted
    and that there are, slots of the ring at most and how many the wanted bytes must hold, steps of
    a piece of a row at most, tiles of a part at most when x is staged and when each part reads it
    again.
    """

    arch: str
    ptx_version: str
    bulk: bool
    n_blocks: int
    wanted_bytes: int
    shared_bytes: int
    max_stages: int
    least_stages: int
    piece_steps: int
    max_tiles: int
    max_tiles_direct: int
    n_warps: int = 8


# sm_90a: 132 multiprocessors, each with room for this block and the next launch's, which fetches
# its first weights while this one ends. sm_80: two for each of an A100's 108, within the 99 KiB
# that a block has on every card.
CHIPS = {
    "sm_90a": Chip("sm_90a", "8.0", True, 132, 112 << 10, 227 << 10, 6, 3, 24, 1, 4),
    "sm_80": Chip("sm_80", "7.0", False, 216, 99 << 10, 99 << 10, 4, 2, 8, 2, 4),
}


@dataclass(frozen=True)
class Form:
    """Which member of the family an op is."""

    epilogue: str
    normed: bool

    @property
    def tile_units(self) -> int:
        """Rows of the output in a tile of 16 rows of w."""
        return 8 if self.epilogue == "swiglu" else 16

    def units(self, dims: Dims) -> int:
        """Cells of a token in all outputs."""
        return sum(dims[width] for width in OUTPUTS[self.epilogue].values())


@dataclass(frozen=True)
class Geometry:
    """One launch: blocks; parts of a block, tiles of a part, rows of a slot; steps of K, chunks of
    it, steps of a chunk; slots; bytes of rows and the places of what lies in shared memory.
    """

    n_blocks: int
    n_parts: int
    n_tiles: int
    slot_rows: int
    n_steps: int
    n_chunks: int
    chunk_steps: int
    n_stages: int
    n_warps: int
    n_buffers: int
    n_resident: int
    row_bytes: int
    slot_bytes: int
    x_row: int
    x_at: int
    squares_at: int
    partials_at: int
    bars_at: int
    shared_bytes: int


def geometry(form: Form, chip: Chip, dims: Dims) -> Geometry | None:
    """The geometry for dims, or None where shared memory or registers have no room for it."""
    # With 9 tokens and more a warp has twice the sums, too many registers for two blocks.
    shares = chip.bulk and dims["T"] <= 8
    budgets = ((chip.wanted_bytes, chip.least_stages),) if shares else ()
    for n_bytes, least in (*budgets, (chip.shared_bytes, 2)):
        for n_stages in range(chip.max_stages, least - 1, -1):
            found = _placed(form, chip, dims, n_stages)
            if found.shared_bytes <= n_bytes:
                fits = not form.normed or _staged_tokens(found) > 0
                return found if fits else None
    return None


def _placed(form: Form, chip: Chip, dims: Dims, n_stages: int) -> Geometry:
    units, n_tokens = form.units(dims), dims["T"]
    most = chip.max_tiles if form.normed else chip.max_tiles_direct
    n_blocks = min(units, chip.n_blocks)
    longest = -(-units // n_blocks)
    tiles = -(-longest // form.tile_units)
    n_parts = -(-tiles // most)
    n_tiles = -(-tiles // n_parts)
    slot_rows = -(-longest // (n_parts * n_tiles)) * (16 // form.tile_units)
    # How K is cut must not depend on anything but K.
    n_steps = dims["K"] // STEP
    n_chunks = -(-n_steps // chip.piece_steps)
    chunk_steps = -(-n_steps // n_chunks)
    row_bytes, x_row = _apart(2 * STEP * chunk_steps), _apart(2 * dims["K"])
    n_buffers = 2 if chip.bulk and n_parts > 1 else 1
    x_at = n_stages * slot_rows * row_bytes
    squares_at = x_at + (n_tokens * x_row if form.normed else 0)
    partials_at = squares_at + (4 * -(-n_tokens // 4) * 4 * chip.n_warps if form.normed else 0)
    bars_at = partials_at + n_buffers * chip.n_warps * n_tokens * 64 * n_tiles
    shared_bytes = bars_at + 16 * n_stages + 32
    shares = chip.bulk and shared_bytes <= chip.wanted_bytes and n_tokens <= 8
    return Geometry(
        n_blocks, n_parts, n_tiles, slot_rows, n_steps, n_chunks, chunk_steps, n_stages,
        chip.n_warps, n_buffers, 2 if shares else 1, row_bytes, slot_rows * row_bytes, x_row, x_at,
        squares_at, partials_at, bars_at, shared_bytes,
    )


def _apart(n_bytes: int) -> int:
    """`n_bytes`, a multiple of 64, or the next one that is no multiple of 128."""
    return n_bytes + 64 * (n_bytes % LINE_BYTES == 0)


def _staged_tokens(found: Geometry) -> int:
    """Tokens whose cells a thread asks for at once; 0 when not one fits into its registers."""
    n_quads = -(-STEP * found.n_steps // (4 * 32 * found.n_warps))
    return min(4, STAGED_REGISTERS[found.n_resident] // (4 * n_quads) - 1)


def few_kernels(
    entry: str, epilogue: str, chips: Mapping[str, Chip] = CHIPS
) -> tuple[Kernel, ...]:
    """The kernels of few tokens for a linear over bf16 x, to stand before those of many."""
    form = Form(epilogue, normed=False)
    return tuple(_tuned(entry, form, name, chip, "few") for name, chip in chips.items())


def norm_op(
    name: str, epilogue: str, examples: tuple[Dims, ...], chips: Mapping[str, Chip] = CHIPS,
    ahead: tuple[Kernel, ...] = (),
) -> Op:
    """The record of a linear over the rmsnorm of x; `examples` give T, K and the widths. Kernels
    `ahead` are tried before those of this file."""
    form = Form(epilogue, normed=True)
    n_banks = 16 // form.tile_units
    return Op(
        name=name,
        params=_params(epilogue),
        tolerance="bf16_output" if epilogue == "swiglu" else "f32_reduction",
        kernels=(
            *ahead,
            *(_tuned(name, form, target, chip) for target, chip in chips.items()),
            _portable(name, form),
        ),
        requires=_requires(form),
        examples=tuple({**dims, "N": n_banks * form.units(dims)} for dims in examples),
    )


def _params(epilogue: str) -> tuple[Param, ...]:
    outputs = OUTPUTS[epilogue]
    dtype = "bf16" if epilogue == "swiglu" else "f32"
    return (
        buf("x", "f32", "T K", align=16),
        buf("gain", "f32", "K", align=16),
        buf("w", "bf16", "N K", align=16),
        *(buf(name, dtype, f"T {width}", out=True) for name, width in outputs.items()),
        *(Param(width, "u32") for width in outputs.values()),
        Param("K", "u32"),
        Param("eps", "f32"),
        Param("offset", "f32"),
    )


def _requires(form: Form) -> Mapping[str, Callable[[Dims], bool]]:
    whole = {f"K a multiple of {UNIT}": lambda dims: dims["K"] % UNIT == 0}
    widths = tuple(OUTPUTS[form.epilogue].values())
    if form.epilogue == "swiglu":
        return {**whole, "N = 2 F": lambda dims: dims["N"] == 2 * dims["F"]}
    if len(widths) == 1:
        return whole
    return {**whole, f"N = {' + '.join(widths)}": lambda dims: dims["N"] == form.units(dims)}


def _tuned(entry: str, form: Form, target: str, chip: Chip, kind: str = "") -> Kernel:
    find = partial(geometry, form, chip)
    special = ("mma.sync", "griddepcontrol", "cp.async.bulk") if chip.bulk else (
        "mma.sync", "cp.async",
    )

    def launch(dims: Dims) -> Launch:
        found = find(dims)
        assert found is not None
        # With bulk copies one warp more fills the ring, and one adds up.
        n_warps = found.n_warps + (2 if chip.bulk else 0)
        return Launch(found.n_blocks, 32 * n_warps, found.shared_bytes, chip.bulk)

    return Kernel(
        target, launch, special=special, form=kind,
        fits=lambda dims: (
            dims["T"] <= MAX_TOKENS and dims["K"] % STEP == 0 and find(dims) is not None
        ),
        constants=lambda dims: _constants(entry, form, chip, dims),
    )


def _constants(entry: str, form: Form, chip: Chip, dims: Dims) -> Mapping[str, Constant]:
    found = geometry(form, chip, dims)
    assert found is not None
    return {
        **words(entry, form), "target": chip.arch, "ptx_version": chip.ptx_version,
        "bulk": chip.bulk, "n_tokens": dims["T"], "n_units": form.units(dims),
        "together": min(dims["T"], _staged_tokens(found)), **asdict(found),
    }


def words(entry: str, form: Form) -> dict[str, Constant]:
    """Constants that every text of the family has: the entry, the epilogue and its outputs."""
    outputs = OUTPUTS[form.epilogue]
    return {
        "entry": entry, "epilogue": form.epilogue, "normed": form.normed,
        "outputs": " ".join(outputs), "widths": " ".join(outputs.values()),
    }


def _portable(entry: str, form: Form) -> Kernel:
    return Kernel(
        "portable",
        lambda dims: Launch((dims["T"], -(-form.units(dims) // WARPS_OF_A_BLOCK)), 256),
        fits=lambda dims: form.units(dims) <= WARPS_OF_A_BLOCK * MAX_GRID_Y,
        constants=lambda dims: words(entry, form),
    )
