"""rmsnorm: y[t,d] = x[t,d] / sqrt(mean_d(x[t,:]^2) + eps) * (offset + w[d])

with offset 0 for weights used as they are, 1 for zero-centred ones.

shapes    x, y f32 [T, D]; w f32 [D]
domain    T, D >= 1; eps finite, > 0; offset finite
effects   writes all of y; y may be x, and overlaps neither in part
rounding  float32 arithmetic; the order of the sum is free and does not depend on T
"""

from ptx.op import Op, Param, buf
from ptx.rmsnorm_kernel import kernels

OP = Op(
    name="rmsnorm",
    params=(
        buf("x", "f32", "T D"),
        buf("w", "f32", "D"),
        buf("y", "f32", "T D", out=True),
        Param("D", "u32"),
        Param("eps", "f32"),
        Param("offset", "f32"),
    ),
    tolerance="f32_reduction",
    kernels=kernels("rmsnorm", add=False, bf16=False),
    examples=({"T": 1, "D": 576}, {"T": 1, "D": 5120}),
)
