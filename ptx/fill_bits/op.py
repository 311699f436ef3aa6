"""fill_bits: y[i] = byte i % 8, the lowest first, of random word start + floor(i / 8)

Words are splitmix64 by seed and index, mod 2^64, equal on every device and in numpy:
z = seed + (index + 1) 0x9E3779B97F4A7C15;  z = (z ^ (z >> 30)) 0xBF58476D1CE4E5B9;
z = (z ^ (z >> 27)) 0x94D049BB133111EB;  word = z ^ (z >> 31)
start counts words, so that a payload filled in parts of whole words has the bits of the whole.
seed = seed_hi 2^32 + seed_lo and start = start_hi 2^32 + start_lo: a launch takes halves.

shapes    y u8 [N]
domain    any seed and start; N >= 1, not always a multiple of 8
effects   writes all of y
rounding  none
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="fill_bits",
    params=(
        buf("y", "u8", "N", out=True),
        Param("N", "u32"),
        Param("seed_lo", "u32"),
        Param("seed_hi", "u32"),
        Param("start_lo", "u32"),
        Param("start_hi", "u32"),
    ),
    tolerance="exact",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=-(-dims["N"] // 256), block=256),
            constants=lambda dims: {"entry": "fill_bits", "cell": "u8"},
        ),
    ),
    # Packed int4 of 17,408 rows of 5,120.
    examples=({"N": 44564480},),
)
