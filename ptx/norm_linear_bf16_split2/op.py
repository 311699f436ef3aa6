"""norm_linear_bf16_split2: y0[t,a] = p[t,a];  y1[t,b] = p[t,A+b]

where p[t,n] = r[t] sum_k bf16(x[t,k] (offset + gain[k])) w[n,k]
and r[t] = 1 / sqrt(mean_k(x[t,:]^2) + eps): the rmsnorm of x, bf16 before its scale is applied.

shapes    x f32 [T, K]; gain f32 [K]; w bf16 [N, K]; y0 f32 [T, A]; y1 f32 [T, B]
domain    N = A + B; K a multiple of 8; T >= 1; x, gain and w start at multiples of 16 bytes
          eps finite, > 0; offset finite; p finite
effects   writes all of y0 and y1; no overlap
rounding  x times its gain to float32, then to bf16; products exact, float32 sums and
          arithmetic; the order of the sums is free, and depends on T at most by
          which kernel serves it: tokens that one kernel serves have the same bits for every T
"""

from ptx.bf16_few_kernel import norm_op
from ptx.bf16_narrow_kernel import narrow_kernels

NAME = "norm_linear_bf16_split2"
OP = norm_op(
    NAME, "split2", ahead=narrow_kernels(NAME, "split2"),
    examples=(
        {"T": 1, "A": 10240, "B": 6144, "K": 5120},
        {"T": 1, "A": 48, "B": 48, "K": 5120},
        {"T": 16, "A": 48, "B": 48, "K": 5120},
    ),
)
