"""linear_int4_group128: y[t,n] = sum_k x[t,k] q[n,k] scales[n,floor(k/128)]

where q[n,2j] is the low nibble of codes[n,j] and q[n,2j+1] the high one, two's complement.

shapes    x f32 [T, K]; codes u8 [N, J]; scales bf16 [N, R]; y f32 [T, N]
domain    K = 2 J = 128 R; q -7 .. 7; scales finite, > 0; T, N, R >= 1
effects   writes all of y; y overlaps neither x, codes nor scales
rounding  float32 arithmetic; the order of the sum is free and does not depend on T
          a weight, its code times its scale, is exact in float32
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear_int4_group128",
    params=params("int4", "none"),
    tolerance="f32_reduction",
    kernels=(portable("linear_int4_group128", "int4", "none"),),
    requires=requires("int4", "none"),
    examples=({"T": 1, "N": 17408, "K": 5120, "J": 2560, "R": 40},),
)
