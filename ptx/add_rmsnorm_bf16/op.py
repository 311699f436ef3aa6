"""add_rmsnorm_bf16: h[t,d] += x[t,d], then the `rmsnorm` of what h is now, rounded to bf16

y[t,d] = bf16(h[t,d] / sqrt(mean_d(h[t,:]^2) + eps) * (offset + w[d]))
with offset 0 for weights used as they are, 1 for zero-centred ones. What a linear takes.

shapes    x, h f32 [T, D]; w f32 [D]; y bf16 [T, D]
domain    T, D >= 1; eps finite, > 0; offset finite
effects   reads and writes all of h; writes all of y; no overlap
rounding  float32 arithmetic; the order of the sum is free and does not depend on T; y is that of
          the h that is stored, rounded once, to nearest, ties to even
"""

from ptx.op import Op, Param, buf
from ptx.rmsnorm_kernel import kernels

OP = Op(
    name="add_rmsnorm_bf16",
    params=(
        buf("x", "f32", "T D"),
        buf("h", "f32", "T D", out=True),
        buf("w", "f32", "D"),
        buf("y", "bf16", "T D", out=True),
        Param("D", "u32"),
        Param("eps", "f32"),
        Param("offset", "f32"),
    ),
    tolerance="bf16_output",
    kernels=kernels("add_rmsnorm_bf16", add=True, bf16=True),
    examples=({"T": 1, "D": 5120},),
)
