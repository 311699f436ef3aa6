"""linear_int8_group_add: h[t,n] += sum_k x[t,k] codes[n,k] scales[n,floor(k/128)]

shapes    x f32 [T, K]; codes i8 [N, K]; scales bf16 [N, R]; h f32 [T, N]
domain    K = 128 R; codes -127 .. 127; scales finite, > 0; T, N, R >= 1
effects   reads and writes all of h; h overlaps neither x, codes nor scales
rounding  float32 arithmetic; the order of the sum is free and does not depend on T
          a weight, its code times its scale, is exact in float32
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear_int8_group_add",
    params=params("int8", "add"),
    tolerance="f32_reduction",
    kernels=(portable("linear_int8_group_add", "int8", "add"),),
    requires=requires("int8", "add"),
    examples=({"T": 1, "N": 17408, "K": 5120, "R": 40},),
)
