"""argmax_wide: the `argmax` of long rows by many blocks, which meet in a workspace

ids[t] = the lowest v whose logits[t,v] is the row's largest, or -1 for a row with a NaN.

shapes    logits f32 [T, V]; ids i32 [T]; work i64 [T, 2]
domain    any float32, infinities included; work all zero; T, V >= 1
effects   writes all of ids; uses work and leaves it all zero again; no overlap
rounding  none
"""

from collections.abc import Mapping

from ptx.op import Constant, Kernel, Launch, Op, Param, buf

# A block takes so many neighbouring cells, each thread every 256th of them, all loads at once:
# 122 blocks for the largest vocabulary, one on nearly every SM.
THREADS, CELLS_OF_A_THREAD = 256, 8
BLOCK_CELLS = THREADS * CELLS_OF_A_THREAD


def _constants(pdl: bool) -> Mapping[str, Constant]:
    return {"pdl": pdl, "threads": THREADS, "cells": CELLS_OF_A_THREAD}


def _tuned(target: str) -> Kernel:
    """Many blocks for a row; on sm_90a a programmatic launch."""
    pdl = target == "sm_90a"
    return Kernel(
        target,
        lambda dims: Launch((-(-dims["V"] // BLOCK_CELLS), dims["T"]), THREADS, programmatic=pdl),
        fits=lambda dims: dims["T"] <= 65_535,
        special=("griddepcontrol",) if pdl else (),
        constants=lambda dims: _constants(pdl),
    )


OP = Op(
    name="argmax_wide",
    params=(
        buf("logits", "f32", "T V"),
        buf("ids", "i32", "T", out=True),
        buf("work", "i64", "T 2", out=True, partial=True),
        Param("V", "u32"),
    ),
    tolerance="exact",
    kernels=(
        _tuned("sm_90a"),
        _tuned("sm_80"),
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["T"], block=256),
            constants=lambda dims: {"entry": "argmax_wide", "wide": True},
        ),
    ),
    requires={"2 words of work for a row": lambda dims: dims["2"] == 2},
    examples=({"T": 1, "V": 248320, "2": 2},),
)
