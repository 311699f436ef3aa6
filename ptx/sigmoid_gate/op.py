"""sigmoid_gate: x[t,n] *= 1 / (1 + exp(-gate[t,n]))

shapes    gate, x f32 [T, N]
domain    gate and x finite; T, N >= 1
effects   reads and writes all of x; x does not overlap gate
rounding  float32 arithmetic; a result below the smallest normal may be zero
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="sigmoid_gate",
    params=(
        buf("gate", "f32", "T N"),
        buf("x", "f32", "T N", out=True),
        Param("T", "u32"),
        Param("N", "u32"),
    ),
    tolerance="f32_elementwise",
    kernels=(
        Kernel("portable", lambda dims: Launch(grid=-(-dims["T"] * dims["N"] // 256), block=256)),
    ),
    examples=({"T": 1, "N": 6144},),
)
