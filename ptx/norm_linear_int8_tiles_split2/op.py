"""norm_linear_int8_tiles_split2: y0[t,a] = p[t,a];  y1[t,b] = p[t,A+b]

where p[t,n] = r[t] sum_k x[t,k] (offset + gain[k]) v[n,k]
and r[t] = 1 / sqrt(mean_k(x[t,:]^2) + eps),
v[n,k] = q[n,k] s[n,floor(k/128)] the weight whose tiles are w (`ptx/weight_tiles.py`, int8).

shapes    x f32 [T, K]; gain f32 [K]; w u8 [R, I, Q]; y0 f32 [T, A]; y1 f32 [T, B]
domain    K = 128 R; 8 I = A + B; Q = 1040;
          q -127 .. 127; scales finite, > 0; x finite; T, R, I >= 1
          eps finite, > 0; offset finite
effects   writes all of y0 and y1; no overlap
rounding  x (times its gain, in float32) to whole steps of 2^(E-14) in each group of 128 along K,
          E = floor(log2(m (1 + 2^-7))), m its largest magnitude, E at least -100; sums of a
          group are exact, the others float32 in free order, the same for all T up to 16
"""

from ptx.linear_few import op

OP = op(
    "norm_linear_int8_tiles_split2", "int8", "split2", normed=True,
    examples=(
        {"T": 1, "A": 10240, "B": 6144, "K": 5120},
        {"T": 8, "A": 10240, "B": 6144, "K": 5120},
    ),
)
