"""add_rmsnorm: h[t,d] += x[t,d], then the `rmsnorm` of what h is now

y[t,d] = h[t,d] / sqrt(mean_d(h[t,:]^2) + eps) * (offset + w[d])
with offset 0 for weights used as they are, 1 for zero-centred ones.

shapes    x, h, y f32 [T, D]; w f32 [D]
domain    T, D >= 1; eps finite, > 0; offset finite
effects   reads and writes all of h; writes all of y; y may be x; h overlaps neither, nor w
rounding  float32 arithmetic; the order of the sum is free and does not depend on T; y is that of
          the h that is stored
"""

from ptx.op import Op, Param, buf
from ptx.rmsnorm_kernel import kernels

OP = Op(
    name="add_rmsnorm",
    params=(
        buf("x", "f32", "T D"),
        buf("h", "f32", "T D", out=True),
        buf("w", "f32", "D"),
        buf("y", "f32", "T D", out=True),
        Param("D", "u32"),
        Param("eps", "f32"),
        Param("offset", "f32"),
    ),
    tolerance="f32_reduction",
    kernels=kernels("add_rmsnorm", add=True, bf16=False),
    examples=({"T": 1, "D": 5120},),
)
