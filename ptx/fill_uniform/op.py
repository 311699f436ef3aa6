"""fill_uniform: y[i] = low + (high - low) u, u in [0, 1) the top 24 bits of random word start + i

Words are splitmix64 by seed and index, mod 2^64, equal on every device and in numpy:
z = seed + (index + 1) 0x9E3779B97F4A7C15;  z = (z ^ (z >> 30)) 0xBF58476D1CE4E5B9;
z = (z ^ (z >> 27)) 0x94D049BB133111EB;  word = z ^ (z >> 31);  u = (word >> 40) / 2^24
start is the index of the first cell, so that a tensor filled in parts has the bits of the whole.
seed = seed_hi 2^32 + seed_lo and start = start_hi 2^32 + start_lo: a launch takes halves.

shapes    y f32 [N]
domain    any seed and start; low, high and high - low finite in float32; N >= 1
effects   writes all of y
rounding  low and high are rounded to float32; then float32, each step to nearest: high - low, times
          the exact u, plus low, the last two never as one fma. So y[i] may round up to high
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="fill_uniform",
    params=(
        buf("y", "f32", "N", out=True),
        Param("N", "u32"),
        Param("seed_lo", "u32"),
        Param("seed_hi", "u32"),
        Param("start_lo", "u32"),
        Param("start_hi", "u32"),
        Param("low", "f32"),
        Param("high", "f32"),
    ),
    tolerance="exact",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=-(-dims["N"] // 256), block=256),
            constants=lambda dims: {"entry": "fill_uniform", "cell": "f32"},
        ),
    ),
    # The embedding of 248,320 tokens of width 5,120.
    examples=({"N": 1271398400},),
)
