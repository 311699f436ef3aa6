"""gdn_gates: g[t,j] = -exp(a_log[j]) softplus(a[t,j] + dt_bias[j]); beta[t,j] = sigmoid(b[t,j])

where softplus(x) = ln(1 + exp(x)) and sigmoid(x) = 1 / (1 + exp(-x)); g is the logarithm of a
decay, so it is never above 0.

shapes    a, b, g, beta f32 [T, Nv]; a_log, dt_bias f32 [Nv]
domain    all finite, exp(a_log) too; T, Nv >= 1
effects   writes all of g and beta; no overlap
rounding  float32 arithmetic; a result below the smallest normal may be zero
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="gdn_gates",
    params=(
        buf("a", "f32", "T Nv"),
        buf("b", "f32", "T Nv"),
        buf("a_log", "f32", "Nv"),
        buf("dt_bias", "f32", "Nv"),
        buf("g", "f32", "T Nv", out=True),
        buf("beta", "f32", "T Nv", out=True),
        Param("T", "u32"),
        Param("Nv", "u32"),
    ),
    tolerance="f32_elementwise",
    kernels=(
        Kernel("portable", lambda dims: Launch(grid=(dims["T"], -(-dims["Nv"] // 64)), block=64)),
    ),
    examples=({"T": 1, "Nv": 48},),
)
