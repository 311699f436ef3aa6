"""causal_attention: y[t,h] = sum_u softmax_u(q[t,h] . k[u,g] / sqrt(E)) v[u,g], u = 0 .. position

Sequence s is the rows starts[s] .. starts[s+1]-1; its row i stands at position first[s] + i and
sees the cells up to there, its own among them. Cell u is row u mod B of page pages[s, u div B] of
k_pages and v_pages; g = floor(h G / H). Whoever calls has put the rows' own K and V there before.

shapes    q f32 [T, H, E]; k_pages, v_pages bf16 [P, G, B, E]; pages i32 [S, W]; starts i32 [S+1];
          first i32 [S]; y bf16 [T, H, E]
domain    G divides H; starts rises strictly from 0 to T; first >= 0; no position reaches W B; the
          entries of pages up to a sequence's last position are in 0 .. P-1, the others are never
          read; cells up to there are finite, the others may hold anything
effects   writes all of y; y overlaps no input
rounding  float32 sums in an order that is free, y rounded once; q, and the weights e^(score - the
          largest so far), may be rounded to bf16 before they are multiplied. The bits of a row
          depend on its position and its sequence's cells alone: not on T, S, its neighbours, the
          calls that rows are cut into, nor on which pages hold the cells
"""

from ptx.causal_attention_kernel import (
    EXAMPLES,
    REQUIRES,
    SM_80,
    SM_90,
    mma,
    params,
    portable,
    wgmma,
)
from ptx.op import Op

OP = Op(
    name="causal_attention",
    params=params(gated=False),
    tolerance="bf16_products",
    kernels=(
        wgmma("causal_attention", False),
        mma("causal_attention", False, "sm_90a", SM_90, form="mma"),
        mma("causal_attention", False, "sm_80", SM_80),
        portable("causal_attention", False),
    ),
    requires=REQUIRES,
    examples=EXAMPLES,
)
