"""linear_int8_group_swiglu: y[t,f] = p[t,f] / (1 + exp(-p[t,f])) * p[t,F+f]

where p[t,n] = sum_k x[t,k] codes[n,k] scales[n,floor(k/128)]:
gate's rows are 0 .. F-1, up's F .. 2F-1.

shapes    x f32 [T, K]; codes i8 [N, K]; scales bf16 [N, R]; y f32 [T, F]
domain    N = 2 F; K = 128 R; codes -127 .. 127; scales finite, > 0; p finite; T, F, R >= 1
effects   writes all of y; y overlaps neither x, codes nor scales
rounding  float32 arithmetic; the order of the sum is free and does not depend on T;
          a result below the smallest normal may be zero
          a weight, its code times its scale, is exact in float32
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear_int8_group_swiglu",
    params=params("int8", "swiglu"),
    tolerance="f32_reduction",
    kernels=(portable("linear_int8_group_swiglu", "int8", "swiglu"),),
    requires=requires("int8", "swiglu"),
    examples=({"T": 1, "N": 34816, "F": 17408, "K": 5120, "R": 40},),
)
