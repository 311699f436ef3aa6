"""causal_attention_gated: y[t,h,e] = a[t,h,e] / (1 + exp(-gate[t,h,e])), a as causal_attention

a[t,h] = sum_u softmax_u(q[t,h] . k[u,g] / sqrt(E)) v[u,g], u = 0 .. position, g = floor(h G / H).
Sequence s is the rows starts[s] .. starts[s+1]-1; its row i stands at position first[s] + i and
sees the cells up to there. Cell u is row u mod B of page pages[s, u div B] of k_pages, v_pages.

shapes    q, gate f32 [T, H, E]; k_pages, v_pages bf16 [P, G, B, E]; pages i32 [S, W];
          starts i32 [S+1]; first i32 [S]; y bf16 [T, H, E]
domain    as causal_attention; gate finite
effects   writes all of y; y overlaps no input
rounding  as causal_attention; y is rounded once, after the gate
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
    name="causal_attention_gated",
    params=params(gated=True),
    tolerance="bf16_products",
    kernels=(
        wgmma("causal_attention_gated", True),
        mma("causal_attention_gated", True, "sm_90a", SM_90, form="mma"),
        mma("causal_attention_gated", True, "sm_80", SM_80),
        portable("causal_attention_gated", True),
    ),
    requires=REQUIRES,
    examples=EXAMPLES,
)
