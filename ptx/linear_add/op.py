"""linear_add: h[t,n] += sum_k x[t,k] w[n,k]

shapes    x f32 [T, K]; w f32 [N, K]; h f32 [T, N]
domain    T, N, K >= 1
effects   reads and writes all of h; h overlaps neither x nor w
rounding  float32 arithmetic; the order of the sum is free and does not depend on T
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear_add",
    params=params("f32", "add"),
    tolerance="f32_reduction",
    kernels=(portable("linear_add", "f32", "add"),),
    requires=requires("f32", "add"),
    examples=({"T": 1, "N": 1536, "K": 576},),
)
