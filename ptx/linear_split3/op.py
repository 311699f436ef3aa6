"""linear_split3: one weight, whose rows are those of three outputs

y0[t,a] = p[t,a];  y1[t,b] = p[t,A+b];  y2[t,c] = p[t,A+B+c]
where p[t,n] = sum_k x[t,k] w[n,k].

shapes    x f32 [T, K]; w f32 [N, K]; y0 f32 [T, A]; y1 f32 [T, B]; y2 f32 [T, C]
domain    N = A + B + C; T, A, B, C, K >= 1
effects   writes all of y0, y1 and y2; no overlap
rounding  float32 arithmetic; the order of the sum is free and does not depend on T
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear_split3",
    params=params("f32", "split3"),
    tolerance="f32_reduction",
    kernels=(portable("linear_split3", "f32", "split3"),),
    requires=requires("f32", "split3"),
    examples=({"T": 1, "N": 14336, "A": 12288, "B": 1024, "C": 1024, "K": 5120},),
)
