"""norm_linear_bf16: y[t,n] = p[t,n]

where p[t,n] = r[t] sum_k bf16(x[t,k] (offset + gain[k])) w[n,k]
and r[t] = 1 / sqrt(mean_k(x[t,:]^2) + eps): the rmsnorm of x, bf16 before its scale is applied.

shapes    x f32 [T, K]; gain f32 [K]; w bf16 [N, K]; y f32 [T, N]
domain    K a multiple of 8; T >= 1; x, gain and w start at multiples of 16 bytes
          eps finite, > 0; offset finite; p finite
effects   writes all of y; no overlap
rounding  x times its gain to float32, then to bf16; products exact, float32 sums and
          arithmetic; the order of the sums is free, and depends on T at most by
          which kernel serves it: tokens that one kernel serves have the same bits for every T
"""

from ptx.bf16_few_kernel import norm_op

OP = norm_op(
    "norm_linear_bf16", "none",
    examples=(
        {"T": 1, "N": 248320, "K": 5120},
        {"T": 16, "N": 248320, "K": 5120},
    ),
)
