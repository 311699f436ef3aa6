"""sample_wide: the `sample` of long rows by many blocks, which meet in a workspace

ids[t], weights[t] = a token and what it weighs in a total, n_left[t] = how many tokens were left,
bit for bit as `sample` has them for z, temperature, top_k, top_p, log_min_p, seed, draw: tokens
rank by z, then by id; top-k, top-p and min-p leave fewer, in this order; one is drawn by integer
weights 2^44 e^((z - m) / temperature) and the splitmix64 word number draw of seed. Rows without a
choice have ids -1 (NaN or +inf) or -2 (nothing above -inf).

shapes    z f64 [T, V]; temperature, top_p, log_min_p f64 [T]; top_k i32 [T]; seed, draw i64 [T];
          ids, n_left i32 [T]; weights i64 [T, 2]; work i64 [T, W]
domain    as sample; work all zero, W = 2320; T >= 1; 1 <= V < 2^19
effects   writes all of ids, weights and n_left; uses work and leaves it all zero; no overlap
rounding  as sample: float64, each operation rounded by itself; integers are exact
"""

from collections.abc import Mapping

from ptx.op import Constant, Dims, Kernel, Launch, Op, Param, buf
from ptx.sample.op import MAX_VOCAB, WEIGHT_CONSTANTS

THREADS = 256
# A slice of a row is what a block takes at once. Its sums are looked through by one block with a
# thread for each, so a row has at most so many slices. FEW of them are faster: they meet after each
# stage. And so are no more blocks in all rows than run AT_ONCE, or rows wait for each other: then
# slices are longer, up to MOST_CELLS tokens of a thread, which lie in registers.
MAX_SLICES, FEW, AT_ONCE, MOST_CELLS = 256, 128, 250, 32
# A round of the search for a key decides 11 bits of it; see sm_80.ptx for the first words of work.
DIGIT_BITS, STATE_WORDS = 11, 16
WORK_WORDS = STATE_WORDS + MAX_SLICES + (1 << DIGIT_BITS)


def _cells(dims: Dims) -> int:
    """Tokens of a thread."""
    cells = -(-dims["V"] // (THREADS * FEW))
    while 2 * cells <= MOST_CELLS and dims["T"] * _slices_of(dims, cells) > AT_ONCE:
        cells *= 2
    return cells


def _slices_of(dims: Dims, cells: int) -> int:
    return -(-dims["V"] // (THREADS * cells))


def _slices(dims: Dims) -> int:
    return _slices_of(dims, _cells(dims))


def _constants(pdl: bool, dims: Dims) -> Mapping[str, Constant]:
    return {
        **WEIGHT_CONSTANTS, "pdl": pdl, "cells": _cells(dims), "n_slices": _slices(dims),
        "max_slices": MAX_SLICES, "state_words": STATE_WORDS, "digit_bits": DIGIT_BITS,
    }


def _tuned(target: str) -> Kernel:
    """A block for each slice of a row; on sm_90a a programmatic launch."""
    pdl = target == "sm_90a"
    return Kernel(
        target,
        lambda dims: Launch((_slices(dims), dims["T"]), THREADS, programmatic=pdl),
        fits=lambda dims: dims["T"] <= 65_535,
        special=("griddepcontrol",) if pdl else (),
        constants=lambda dims: _constants(pdl, dims),
    )


OP = Op(
    name="sample_wide",
    params=(
        buf("z", "f64", "T V"),
        buf("temperature", "f64", "T"),
        buf("top_k", "i32", "T"),
        buf("top_p", "f64", "T"),
        buf("log_min_p", "f64", "T"),
        buf("seed", "i64", "T"),
        buf("draw", "i64", "T"),
        buf("ids", "i32", "T", out=True),
        buf("weights", "i64", "T 2", out=True),
        buf("n_left", "i32", "T", out=True),
        buf("work", "i64", "T W", out=True, partial=True),
        Param("V", "u32"),
        Param("W", "u32"),
    ),
    tolerance="exact",
    kernels=(
        _tuned("sm_90a"),
        _tuned("sm_80"),
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["T"], block=256),
            constants=lambda dims: {**WEIGHT_CONSTANTS, "entry": "sample_wide", "wide": True},
        ),
    ),
    requires={
        "V < 2^19": lambda dims: dims["V"] <= MAX_VOCAB,
        "a weight and a total for a row": lambda dims: dims["2"] == 2,
        "W = 2320": lambda dims: dims["W"] == WORK_WORDS,
    },
    examples=tuple({"T": n, "V": 248320, "2": 2, "W": WORK_WORDS} for n in (1, 4, 16)),
)
