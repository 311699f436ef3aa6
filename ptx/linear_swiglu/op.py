"""linear_swiglu: y[t,f] = p[t,f] / (1 + exp(-p[t,f])) * p[t,F+f]

where p[t,n] = sum_k x[t,k] w[n,k]: gate's rows are 0 .. F-1, up's F .. 2F-1.

shapes    x f32 [T, K]; w f32 [N, K]; y f32 [T, F]
domain    N = 2 F; p finite; T, F, K >= 1
effects   writes all of y; y overlaps neither x nor w
rounding  float32 arithmetic; the order of the sum is free and does not depend on T;
          a result below the smallest normal may be zero
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear_swiglu",
    params=params("f32", "swiglu"),
    tolerance="f32_reduction",
    kernels=(portable("linear_swiglu", "f32", "swiglu"),),
    requires=requires("f32", "swiglu"),
    examples=({"T": 1, "N": 34816, "F": 17408, "K": 5120},),
)
