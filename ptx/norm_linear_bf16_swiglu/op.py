"""norm_linear_bf16_swiglu: y[t,f] = p[t,f] / (1 + exp(-p[t,f])) * p[t,F+f]

where p[t,n] = r[t] sum_k bf16(x[t,k] (offset + gain[k])) w[n,k]
and r[t] = 1 / sqrt(mean_k(x[t,:]^2) + eps): the rmsnorm of x, bf16 before its scale is applied.
Gate's rows of w are 0 .. F-1, up's F .. 2F-1.

shapes    x f32 [T, K]; gain f32 [K]; w bf16 [N, K]; y bf16 [T, F]
domain    N = 2 F; K a multiple of 8; T >= 1; x, gain and w start at multiples of 16 bytes
          eps finite, > 0; offset finite; p finite
effects   writes all of y; no overlap
rounding  x times its gain to float32, then to bf16; products exact, float32 sums and
          arithmetic; y once, to bf16; the order of the sums is free, and depends on T at most by
          which kernel serves it: tokens that one kernel serves have the same bits for every T
"""

from ptx.bf16_few_kernel import norm_op

OP = norm_op(
    "norm_linear_bf16_swiglu", "swiglu",
    examples=(
        {"T": 1, "F": 17408, "K": 5120},
        {"T": 2, "F": 17408, "K": 5120},
        {"T": 4, "F": 17408, "K": 5120},
        {"T": 8, "F": 17408, "K": 5120},
        {"T": 16, "F": 17408, "K": 5120},
    ),
)
