"""linear_int4_group128_split4: one weight, whose rows are those of four outputs

y0[t,a] = p[t,a];  y1[t,b] = p[t,A+b];  y2[t,c] = p[t,A+B+c];  y3[t,d] = p[t,A+B+C+d]
where p[t,n] = sum_k x[t,k] q[n,k] scales[n,floor(k/128)];
q[n,2j] is the low nibble of codes[n,j] and q[n,2j+1] the high one, two's complement.

shapes    x f32 [T, K]; codes u8 [N, J]; scales bf16 [N, R];
          y0 f32 [T, A]; y1 f32 [T, B]; y2 f32 [T, C]; y3 f32 [T, D]
domain    N = A + B + C + D; K = 2 J = 128 R; q -7 .. 7; scales finite, > 0; T, A, B, C, D, R >= 1
effects   writes all of y0, y1, y2 and y3; no overlap
rounding  float32 arithmetic; the order of the sum is free and does not depend on T;
          a weight, its code times its scale, is exact in float32
"""

from ptx.linear_kernel import params, portable, requires
from ptx.op import Op

OP = Op(
    name="linear_int4_group128_split4",
    params=params("int4", "split4"),
    tolerance="f32_reduction",
    kernels=(portable("linear_int4_group128_split4", "int4", "split4"),),
    requires=requires("int4", "split4"),
    examples=({
        "T": 1, "N": 16480, "A": 10240, "B": 6144, "C": 48, "D": 48, "K": 5120, "J": 2560, "R": 40,
    },),
)
