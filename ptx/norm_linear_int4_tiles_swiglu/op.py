"""norm_linear_int4_tiles_swiglu: y[t,f] = p[t,f] / (1 + exp(-p[t,f])) * p[t,F+f]

where p[t,n] = r[t] sum_k x[t,k] (offset + gain[k]) v[n,k]
and r[t] = 1 / sqrt(mean_k(x[t,:]^2) + eps),
v[n,k] = q[n,k] s[n,floor(k/128)] the weight whose tiles are w (`ptx/weight_tiles.py`, int4)
and gate's rows 0 .. F-1.

shapes    x f32 [T, K]; gain f32 [K]; w u8 [R, I, Q]; y bf16 [T, F]
domain    K = 128 R; 8 I = 2 F, F in whole tiles of 8 rows; Q = 528;
          q -7 .. 7; scales finite, > 0; x finite; T, R, I >= 1
          eps finite, > 0; offset finite
effects   writes all of y; no overlap
rounding  x (times its gain, in float32) to whole steps of 2^(E-14) in each group of 128 along K,
          E = floor(log2(m (1 + 2^-7))), m its largest magnitude, E at least -100; sums of a
          group are exact, the others float32 in free order, the same for all T up to 16; y to bf16
"""

from ptx.linear_few import op

OP = op(
    "norm_linear_int4_tiles_swiglu", "int4", "swiglu", normed=True,
    examples=(
        {"T": 1, "F": 17408, "K": 5120},
        {"T": 8, "F": 17408, "K": 5120},
        {"T": 16, "F": 17408, "K": 5120},
    ),
)
