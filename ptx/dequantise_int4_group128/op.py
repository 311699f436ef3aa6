"""dequantise_int4_group128: w[n,k] = q[n,k] scales[n,floor(k/128)]

where q[n,2j] is the low nibble of codes[n,j] and q[n,2j+1] the high one, two's complement.

shapes    codes u8 [N, J]; scales bf16 [N, R]; w bf16 [N, K]
domain    K = 2 J = 128 R; q -8 .. 7; scales finite, > 0; N, R >= 1; codes start at a multiple of 4
          bytes and w of 16
effects   writes all of w, which overlaps neither codes nor scales
rounding  the exact product, once to bf16, ties to even; subnormals are kept
"""

from ptx.op import Dims, Kernel, Launch, Op, Param, buf

# Of the tuned kernel: threads of a block, and words of eight codes for each of them.
THREADS, WORDS = 256, 4
MAX_BYTES = 2**32


def _blocks(dims: Dims, bytes_of_a_block: int) -> Launch:
    return Launch(-(-dims["N"] * dims["J"] // bytes_of_a_block), THREADS)


def _fits(dims: Dims) -> bool:
    return dims["N"] * dims["J"] < MAX_BYTES


OP = Op(
    name="dequantise_int4_group128",
    params=(
        buf("codes", "u8", "N J", align=4),
        buf("scales", "bf16", "N R"),
        buf("w", "bf16", "N K", out=True, align=16),
        Param("N", "u32"),
        Param("J", "u32"),
    ),
    tolerance="exact",
    kernels=(
        Kernel(
            "sm_80", lambda dims: _blocks(dims, 4 * WORDS * THREADS), fits=_fits,
            special=("fma.rn.bf16x2",),
            constants=lambda dims: {"threads": THREADS, "words": WORDS},
        ),
        Kernel("portable", lambda dims: _blocks(dims, THREADS), fits=_fits),
    ),
    requires={
        "K = 2 J": lambda dims: dims["K"] == 2 * dims["J"],
        "K = 128 R": lambda dims: dims["K"] == 128 * dims["R"],
    },
    examples=({"N": 34816, "K": 5120, "J": 2560, "R": 40},),
)
