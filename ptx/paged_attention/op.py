"""paged_attention: y[t,h] = sum_u softmax_u(q[t,h] . k[u,g] / sqrt(E)) v[u,g]

for u = 0 .. positions[t] and g = floor(h G / H). Cell u of sequence s = seq_of_token[t] is row
u mod B, head g, of page pages[s, floor(u / B)] of k_pages and v_pages. For decoding: the cells of
one token and kv head are cut into up to Z splits, computed apart and merged.

shapes    q f32 [T, H, E]; k_pages, v_pages bf16 [P, G, B, E]; pages i32 [S, W];
          seq_of_token, positions i32 [T]; y bf16 [T, H, E];
          scratch: parts f32 [T, H, Z, E], peaks f32 [T, H, Z, 2]; arrived i32 [T, G]
domain    G divides H; E <= 256; 0 <= seq_of_token[t] < S; 0 <= positions[t] < W B; the entries of
          pages up to positions[t] are in 0 .. P-1, those after it are never read, nor is a cell
          past it used: it may hold NaN; arrived is 0; T, S, W, P, B, Z >= 1
effects   writes all of y; may write parts and peaks, whose content means nothing before or after;
          leaves arrived 0; outputs overlap nothing
rounding  q and the softmax's weights may be rounded to bf16 once, the rest is float32 arithmetic
          rounded once to y; the order of sums is free and depends on positions[t] and Z alone
"""

from ptx.op import Op
from ptx.paged_attention_kernel import REQUIRES, kernels, params

OP = Op(
    name="paged_attention",
    params=params(gated=False),
    tolerance="bf16_products",
    kernels=kernels("paged_attention", gated=False),
    requires=REQUIRES,
    examples=(
        {"T": 1, "H": 24, "G": 4, "E": 256, "P": 2048, "B": 16, "S": 1, "W": 2048, "Z": 33, "2": 2},
        {"T": 1, "H": 24, "G": 4, "E": 256, "P": 512, "B": 16, "S": 1, "W": 512, "Z": 33, "2": 2},
        {"T": 8, "H": 24, "G": 4, "E": 256, "P": 4096, "B": 16, "S": 8, "W": 512, "Z": 33, "2": 2},
        {"T": 1, "H": 9, "G": 3, "E": 64, "P": 128, "B": 16, "S": 1, "W": 128, "Z": 44, "2": 2},
    ),
)
