"""linear: y[t,n] = sum_k x[t,k] w[n,k]

shapes    x f32 [T, K]; w f32 [N, K]; y f32 [T, N]
domain    T, N, K >= 1
effects   writes all of y; y overlaps neither x nor w
rounding  float32 arithmetic; the order of the sum is free and does not depend on T
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear",
    params=params("f32", "none"),
    tolerance="f32_reduction",
    kernels=(portable("linear", "f32", "none"),),
    requires=requires("f32", "none"),
    examples=({"T": 1, "N": 1536, "K": 576},),
)
