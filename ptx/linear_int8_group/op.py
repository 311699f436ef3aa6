"""linear_int8_group: y[t,n] = sum_k x[t,k] codes[n,k] scales[n,floor(k/128)]

shapes    x f32 [T, K]; codes i8 [N, K]; scales bf16 [N, R]; y f32 [T, N]
domain    K = 128 R; codes -127 .. 127; scales finite, > 0; T, N, R >= 1
effects   writes all of y; y overlaps neither x, codes nor scales
rounding  float32 arithmetic; the order of the sum is free and does not depend on T
          a weight, its code times its scale, is exact in float32
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear_int8_group",
    params=params("int8", "none"),
    tolerance="f32_reduction",
    kernels=(portable("linear_int8_group", "int8", "none"),),
    requires=requires("int8", "none"),
    examples=({"T": 1, "N": 17408, "K": 5120, "R": 40},),
)
