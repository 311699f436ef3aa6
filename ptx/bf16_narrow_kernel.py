"""Owns how a normed bf16 linear of few rows is launched: which rows and tokens a block has.

It must not know which ops exist. The text is `bf16_narrow.ptx`. For a matrix of some MB the rings
of `bf16_few.ptx` only take time to begin; here a block keeps its rows in registers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ptx.bf16_few_kernel import MAX_TOKENS, Form, words
from ptx.op import Constant, Dims, Kernel, Launch

N_WARPS, LANES = 8, 32
# Rows of a matrix that is narrow: two for each multiprocessor of an H200.
MAX_ROWS = 264
# Registers for a thread's cells and sums; with 40 for everything else, a block has them anywhere.
MAX_REGISTERS = 168
# Shared bytes of a block on every card.
MAX_SHARED = 99 << 10


@dataclass(frozen=True)
class Chip:
    """One target: blocks at most, a multiprocessor for each, and whether launches overlap."""

    arch: str
    ptx_version: str
    programmatic: bool
    n_blocks: int


# An H200 has 132 multiprocessors, an A100 108.
CHIPS = {
    "sm_90a": Chip("sm_90a", "8.0", True, 132),
    "sm_80": Chip("sm_80", "7.0", False, 108),
}


@dataclass(frozen=True)
class Share:
    """Of a block: rows of w, tokens."""

    rows: int
    tokens: int

    @property
    def staged(self) -> bool:
        """Whether x goes through shared memory: of one token registers have room for it."""
        return self.tokens > 1

    @property
    def n_sums(self) -> int:
        """Sums that a block exchanges: squares of each token, and its products."""
        return self.tokens * (self.rows + 1)


def share(chip: Chip, n_rows: int, n_tokens: int, n_in: int) -> Share | None:
    """What a block has, or None where registers, lanes or shared memory lack room for it.

    Of what leaves every block a multiprocessor of its own, that of the fewest bytes a block: 4 K
    for each token, 2 K for each row; of as many, that of the fewest tokens, for x comes behind the
    wait and some of w before. Assumed: KNOWLEDGE/optimizations/bf16-narrow-rows.md
    """
    found = []
    for tokens in range(1, n_tokens + 1):
        n_runs = chip.n_blocks // -(-n_tokens // tokens)
        if n_runs:
            one = Share(-(-n_rows // n_runs), tokens)
            if (
                one.n_sums <= LANES and _registers(one, n_in) <= MAX_REGISTERS
                and _shared_bytes(one, n_in) <= MAX_SHARED
            ):
                found.append(one)
    return min(found, key=lambda one: (4 * one.tokens + 2 * one.rows, one.tokens), default=None)


def _registers(one: Share, n_in: int) -> int:
    """Of a thread, for four neighbours of k: 2 a row, 4 the gain, 4 x; and its sums."""
    n_own = _runs(n_in)
    n_held = one.tokens if one.staged else n_own
    return n_own * (2 * one.rows + 4) + 4 * n_held + one.n_sums


def _runs(n_in: int) -> int:
    """Fours of neighbours of k that a thread has."""
    return -(-n_in // (4 * LANES * N_WARPS))


def _x_bytes(one: Share, n_in: int) -> int:
    """Shared bytes of x: 16 for each four neighbours of each thread."""
    return 16 * LANES * N_WARPS * _runs(n_in) * one.tokens if one.staged else 0


def _shared_bytes(one: Share, n_in: int) -> int:
    """Of a block: x, and a share of each warp in each sum."""
    return _x_bytes(one, n_in) + 4 * N_WARPS * one.n_sums


def narrow_kernels(
    entry: str, epilogue: str, chips: Mapping[str, Chip] = CHIPS
) -> tuple[Kernel, ...]:
    """The kernels of few rows, to stand before those that `norm_op` gives; not for swiglu."""
    form = Form(epilogue, normed=True)
    return tuple(_narrow(entry, form, chip) for chip in chips.values())


def _narrow(entry: str, form: Form, chip: Chip) -> Kernel:
    def find(dims: Dims) -> Share | None:
        return share(chip, form.units(dims), dims["T"], dims["K"])

    def found(dims: Dims) -> Share:
        one = find(dims)
        assert one is not None
        return one

    def launch(dims: Dims) -> Launch:
        one = found(dims)
        grid = (-(-form.units(dims) // one.rows), -(-dims["T"] // one.tokens))
        n_bytes = _shared_bytes(one, dims["K"])
        return Launch(grid, LANES * N_WARPS, n_bytes, chip.programmatic)

    def constants(dims: Dims) -> Mapping[str, Constant]:
        one = found(dims)
        log_span = (one.n_sums - 1).bit_length()
        return {
            **words(entry, form), "target": chip.arch, "ptx_version": chip.ptx_version,
            "programmatic": chip.programmatic, "n_warps": N_WARPS, "n_in": dims["K"],
            "n_tokens": dims["T"], "n_rows": form.units(dims), "rows": one.rows,
            "tokens": one.tokens, "staged": one.staged, "shares_at": _x_bytes(one, dims["K"]),
            "log_span": log_span, "span": 1 << log_span,
        }

    return Kernel(
        chip.arch, launch, form="narrow", constants=constants,
        special=("griddepcontrol", "cp.async") if chip.programmatic else ("cp.async",),
        fits=lambda dims: (
            dims["T"] <= MAX_TOKENS and form.units(dims) <= MAX_ROWS and find(dims) is not None
        ),
    )
