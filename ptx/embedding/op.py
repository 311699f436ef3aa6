"""embedding: y[t,d] = w[ids[t],d]

shapes    ids i32 [T]; w f32 [V, D]; y f32 [T, D]
domain    0 <= ids[t] < V; T, V, D >= 1
effects   writes all of y; y overlaps neither ids nor w
rounding  none: y holds bits of w
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="embedding",
    params=(
        buf("ids", "i32", "T"),
        buf("w", "f32", "V D"),
        buf("y", "f32", "T D", out=True),
        Param("D", "u32"),
    ),
    tolerance="exact",
    kernels=(Kernel("portable", lambda dims: Launch(grid=dims["T"], block=128)),),
    examples=({"T": 1, "V": 49152, "D": 576},),
)
