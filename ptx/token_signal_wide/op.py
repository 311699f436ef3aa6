"""token_signal_wide: the `token_signal` of long rows by many blocks, which meet in a workspace

ids[t] = the best token a and the second b; values[t] = H, -ln S, -M - ln S, M with l = logits[t],
d[v] = l[v] - l[a], S = sum_v exp(d[v]): softmax entropy H = ln S - sum_v d[v] exp(d[v]) / S, the
log-probabilities of a and of b, and their margin M = l[a] - l[b], all in nats. Among equal logits
the lower id comes first. A cell of -infinity weighs nothing. A row with a NaN, or whose largest
logit is not finite, gives ids -1, -1 and four zeros.

shapes    logits f32 [T, V]; ids i32 [T, 2]; values f32 [T, 4]; work i64 [T, W]
domain    any float32; work all zero, W = 1 + 4 ceil(V / 2048); V >= 2; T >= 1
effects   writes all of ids and values; uses work and leaves it all zero again; no overlap
rounding  as token_signal, but that d is the sum of two differences in float32, of a cell from the
          best of its 2,048 neighbours and of that from l[a], each with its exponential: H and ln S
          are within 5e-6 nats of the exact ones, and within 1e-5 of themselves plus 1e-35, for
          V <= 2^20; -M - ln S is within 5e-6 nats and 2^-24 of itself, M within 2^-24 of itself
"""

from collections.abc import Mapping

from ptx.op import Constant, Dims, Kernel, Launch, Op, Param, buf

# A block takes so many neighbouring cells, each thread every 256th of them, kept in registers.
THREADS, CELLS_OF_A_THREAD = 256, 8
BLOCK_CELLS = THREADS * CELLS_OF_A_THREAD
# What a block leaves for the last one: the keys of its best and second, and two sums.
BLOCK_WORDS = 4


def work_words(n_vocab: int) -> int:
    """Words of work for a row of so many cells: the arrivals, then those of each block."""
    return 1 + BLOCK_WORDS * -(-n_vocab // BLOCK_CELLS)


def _constants(pdl: bool, dims: Dims) -> Mapping[str, Constant]:
    return {"pdl": pdl, "threads": THREADS, "cells": CELLS_OF_A_THREAD, "words": BLOCK_WORDS}


def _tuned(target: str) -> Kernel:
    """Many blocks for a row; on sm_90a a programmatic launch."""
    pdl = target == "sm_90a"
    return Kernel(
        target,
        lambda dims: Launch((-(-dims["V"] // BLOCK_CELLS), dims["T"]), THREADS, programmatic=pdl),
        fits=lambda dims: dims["T"] <= 65_535,
        special=("griddepcontrol",) if pdl else (),
        constants=lambda dims: _constants(pdl, dims),
    )


OP = Op(
    name="token_signal_wide",
    params=(
        buf("logits", "f32", "T V"),
        buf("ids", "i32", "T 2", out=True),
        buf("values", "f32", "T 4", out=True),
        buf("work", "i64", "T W", out=True, partial=True),
        Param("V", "u32"),
        Param("W", "u32"),
    ),
    tolerance="f32_elementwise",
    kernels=(
        _tuned("sm_90a"),
        _tuned("sm_80"),
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["T"], block=256),
            constants=lambda dims: {"entry": "token_signal_wide", "wide": True},
        ),
    ),
    requires={
        "two tokens to compare": lambda dims: dims["V"] >= 2,
        "2 ids and 4 values for a row": lambda dims: dims["2"] == 2 and dims["4"] == 4,
        "W = 1 + 4 ceil(V / 2048)": lambda dims: dims["W"] == work_words(dims["V"]),
    },
    examples=({"T": 1, "V": 248320, "2": 2, "4": 4, "W": work_words(248320)},),
)
