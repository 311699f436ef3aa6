"""linear_bf16: y[t,n] = sum_k x[t,k] w[n,k]

shapes    x f32 [T, K]; w bf16 [N, K]; y f32 [T, N]
domain    T, N, K >= 1
effects   writes all of y; y overlaps neither x nor w
rounding  float32 arithmetic; the order of the sum is free and does not depend on T
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear_bf16",
    params=params("bf16", "none"),
    tolerance="f32_reduction",
    kernels=(portable("linear_bf16", "bf16", "none"),),
    requires=requires("bf16", "none"),
    examples=({"T": 1, "N": 1536, "K": 576},),
)
