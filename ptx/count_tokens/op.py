"""count_tokens: counts[lanes[t],ids[t]] += delta[t] for every t, in any order

How often each token occurs in a lane's penalty window: a token that enters it has delta 1, one
that leaves it -1. A row with lanes[t] = -1 is padding, and its ids[t] and delta[t] may be anything.

shapes    counts i32 [P, V]; ids, lanes, delta i32 [T]
domain    lanes in -1 .. P-1; ids in 0 .. V-1 where the lane is not -1; several t may name one
          cell; no sum leaves i32; T, P, V >= 1
effects   reads and writes the cells of counts that lanes and ids name, no others; no overlap
rounding  none
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="count_tokens",
    params=(
        buf("counts", "i32", "P V", out=True, partial=True),
        buf("ids", "i32", "T"),
        buf("lanes", "i32", "T"),
        buf("delta", "i32", "T"),
        Param("T", "u32"),
        Param("V", "u32"),
    ),
    tolerance="exact",
    kernels=(Kernel("portable", lambda dims: Launch(grid=-(-dims["T"] // 256), block=256)),),
    examples=({"T": 1, "P": 32, "V": 248320},),
)
