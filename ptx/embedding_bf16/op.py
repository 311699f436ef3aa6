"""embedding_bf16: y[t,d] = w[ids[t],d], widened

What `embedding` does, from a table of bf16: half the memory, and a model reads one row a token.

shapes    ids i32 [T]; w bf16 [V, D]; y f32 [T, D]
domain    0 <= ids[t] < V; T, V, D >= 1
effects   writes all of y; y overlaps neither ids nor w
rounding  none: bf16 is a prefix of f32; any bits, NaN included
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="embedding_bf16",
    params=(
        buf("ids", "i32", "T"),
        buf("w", "bf16", "V D"),
        buf("y", "f32", "T D", out=True),
        Param("D", "u32"),
    ),
    tolerance="exact",
    kernels=(Kernel("portable", lambda dims: Launch(grid=dims["T"], block=128)),),
    examples=({"T": 1, "V": 248320, "D": 5120}, {"T": 2048, "V": 248320, "D": 5120}),
)
