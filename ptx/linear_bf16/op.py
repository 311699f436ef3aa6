"""linear_bf16: y[t,n] = sum_k x[t,k] w[n,k]

shapes    x f32 [T, K]; w bf16 [N, K]; y f32 [T, N]
domain    T, N, K >= 1
effects   writes all of y; y overlaps neither x nor w
rounding  float32 arithmetic; the order of the sum is free and does not depend on T
"""

from ptx.linear_kernel import portable
from ptx.op import Op, Param, buf

OP = Op(
    name="linear_bf16",
    params=(
        buf("x", "f32", "T K"),
        buf("w", "bf16", "N K"),
        buf("y", "f32", "T N", out=True),
        Param("N", "u32"),
        Param("K", "u32"),
    ),
    tolerance="f32_reduction",
    kernels=(portable("linear_bf16", "bf16", add=False),),
    examples=({"T": 1, "N": 1536, "K": 576},),
)
