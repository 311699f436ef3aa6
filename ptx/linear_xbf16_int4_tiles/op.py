"""linear_xbf16_int4_tiles: y[t,n] = p[t,n]

where p[t,n] = sum_k x[t,k] v[n,k],
v[n,k] = q[n,k] s[n,floor(k/128)] the weight whose tiles are w (`ptx/weight_tiles.py`, int4).

shapes    x bf16 [T, K]; w u8 [R, I, Q]; y f32 [T, N]
domain    K = 128 R; 8 I = N; Q = 528;
          q -7 .. 7; scales finite, > 0; x finite; T, R, I >= 1
effects   writes all of y; no overlap
rounding  x (times its gain, in float32) to whole steps of 2^(E-14) in each group of 128 along K,
          E = floor(log2(m (1 + 2^-7))), m its largest magnitude, E at least -100; sums of a
          group are exact, the others float32 in free order, the same for all T up to 16
"""

from ptx.linear_few import op

OP = op(
    "linear_xbf16_int4_tiles", "int4", "none", normed=False,
    examples=(
        {"T": 1, "N": 5120, "K": 17408},
        {"T": 8, "N": 5120, "K": 17408},
    ),
)
