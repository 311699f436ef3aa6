"""adjust_logits: z[t,v] = the raw logit of token v after its row's mask, penalties and biases

1. mask       z = logits[t,v], or -inf where bit v % 32 of mask[t, floor(v / 32)] is 0
2. penalties  where c = counts[t,v] > 0, unless repeat[t] = 1 and frequency[t] = presence[t] = 0:
              z = (z > 0 ? z / repeat[t] : z repeat[t]) - c frequency[t] - presence[t]
3. biases     z = z + bias[t,b] for each b = 0 .. B-1, in this order, with bias_ids[t,b] = v
A logit that is NaN or infinite is corruption, and stays to be seen: its z is NaN, masked or not.

shapes    logits f32 [T, V]; counts i32 [T, V]; mask u32 [T, W]; bias_ids i32 [T, B];
          bias f64 [T, B]; repeat, frequency, presence f64 [T]; z f64 [T, V]
domain    W = ceil(V / 32), bits past V are not looked at; bias_ids in -1 .. V-1, -1 is an empty
          place whose bias may be anything; a bias is below infinity, and no NaN; repeat finite,
          > 0; frequency and presence finite; T, V, B >= 1
effects   writes all of z; z overlaps no input
rounding  float64, each operation of the formulas rounded by itself, from left to right; a token
          that nothing changes keeps its logit, and -0 its sign. Every NaN is 0x7FF8000000000000
"""

from ptx.op import Dims, Kernel, Launch, Op, Param, buf

# A block takes so many neighbouring tokens of a row; the tuned text keeps four in each thread.
BLOCK_TOKENS, THREADS = 1024, 256


def _tuned(target: str) -> Kernel:
    """A block for a slice of a row, its biases found together; on sm_90a a programmatic launch."""
    pdl = target == "sm_90a"
    return Kernel(
        target,
        lambda dims: Launch(_grid(dims), THREADS, programmatic=pdl),
        special=("griddepcontrol",) if pdl else (),
        constants=lambda dims: {"pdl": pdl, "threads": THREADS, "cells": BLOCK_TOKENS // THREADS},
    )


def _grid(dims: Dims) -> tuple[int, int]:
    return dims["T"], -(-dims["V"] // BLOCK_TOKENS)


OP = Op(
    name="adjust_logits",
    params=(
        buf("logits", "f32", "T V"),
        buf("counts", "i32", "T V"),
        buf("mask", "u32", "T W"),
        buf("bias_ids", "i32", "T B"),
        buf("bias", "f64", "T B"),
        buf("repeat", "f64", "T"),
        buf("frequency", "f64", "T"),
        buf("presence", "f64", "T"),
        buf("z", "f64", "T V", out=True),
        Param("V", "u32"),
        Param("W", "u32"),
        Param("B", "u32"),
    ),
    tolerance="exact",
    kernels=(
        _tuned("sm_90a"),
        _tuned("sm_80"),
        Kernel(
            "portable",
            lambda dims: Launch(_grid(dims), block=256),
            constants=lambda dims: {"block_tokens": BLOCK_TOKENS},
        ),
    ),
    requires={"W = ceil(V / 32)": lambda dims: dims["W"] == -(-dims["V"] // 32)},
    examples=({"T": 1, "V": 248320, "W": 7760, "B": 256},),
)
