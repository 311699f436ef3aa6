"""swiglu: y[t,f] = gate[t,f] / (1 + exp(-gate[t,f])) * up[t,f]

shapes    gate, up, y f32 [T, F]
domain    gate and up finite; T, F >= 1
effects   writes all of y; y may be gate or up, and overlaps neither in part
rounding  float32 arithmetic; a result below the smallest normal may be zero
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="swiglu",
    params=(
        buf("gate", "f32", "T F"),
        buf("up", "f32", "T F"),
        buf("y", "f32", "T F", out=True),
        Param("T", "u32"),
        Param("F", "u32"),
    ),
    tolerance="f32_elementwise",
    kernels=(
        Kernel("portable", lambda dims: Launch(grid=-(-dims["T"] * dims["F"] // 256), block=256)),
    ),
    examples=({"T": 1, "F": 1536},),
)
