"""linear_bf16_split4: one weight, whose rows are those of four outputs

y0[t,a] = p[t,a];  y1[t,b] = p[t,A+b];  y2[t,c] = p[t,A+B+c];  y3[t,d] = p[t,A+B+C+d]
where p[t,n] = sum_k x[t,k] w[n,k].

shapes    x f32 [T, K]; w bf16 [N, K]; y0 f32 [T, A]; y1 f32 [T, B]; y2 f32 [T, C]; y3 f32 [T, D]
domain    N = A + B + C + D; T, A, B, C, D, K >= 1
effects   writes all of y0, y1, y2 and y3; no overlap
rounding  float32 arithmetic; the order of the sum is free and does not depend on T
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear_bf16_split4",
    params=params("bf16", "split4"),
    tolerance="f32_reduction",
    kernels=(portable("linear_bf16_split4", "bf16", "split4"),),
    requires=requires("bf16", "split4"),
    examples=({"T": 1, "N": 16480, "A": 10240, "B": 6144, "C": 48, "D": 48, "K": 5120},),
)
