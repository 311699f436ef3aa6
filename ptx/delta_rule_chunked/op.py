"""delta_rule_chunked: what `delta_rule` computes, `chunk` tokens at a time

Each sequence's rows are cut into chunks of `chunk`, the last one shorter. Within a chunk of n
rows, with D[i,j] = exp(g[j+1] + .. + g[i]) for j <= i, else 0, and c[i] = exp(g[0] + .. + g[i]):
A = I + strictly_lower(beta_i (k_i . k_j) D[i,j]);  U = A^-1 (beta v);  Y = A^-1 (beta c k);
V' = U - Y S^T;  o = c (q S^T) + ((q k^T) D) V';  S = c[n-1] S + V'^T (D[n-1,:] k)

The packing of qkv, the heads, l2 and the scale, and what starts, state_in and state_out mean are
in the contract of `delta_rule`.

shapes    qkv f32 [T, C]; g, beta f32 [T, Nv]; starts i32 [S+1]; state_in, state_out i32 [S];
          state f32 [P, Nv, Dv, Dk]; o f32 [T, Nv, Dv]
domain    that of `delta_rule`; chunk >= 1
effects   those of `delta_rule`
rounding  float32 arithmetic, the order of sums is free; a token's bits depend on where its chunk
          begins, so that they are those of `delta_rule` only within the tolerance
"""

from ptx.delta_rule.op import OP as DELTA_RULE
from ptx.op import Constant, Dims, Kernel, Launch, Op, Param

# Rows of a chunk that a block works on at once: a thread for each pair, and static shared memory.
MAX_ROWS, SHARED_BYTES = 16, 48 << 10


def _constants(dims: Dims) -> dict[str, Constant]:
    n_parts = -(-dims["Dk"] // 32)
    pair_bytes = 4 * (3 * MAX_ROWS * MAX_ROWS + 2 * MAX_ROWS)
    n_rows = min(MAX_ROWS, (SHARED_BYTES - pair_bytes) // (2 * 128 * n_parts))
    return {"n_parts": n_parts, "n_rows": n_rows}


OP = Op(
    name="delta_rule_chunked",
    params=(*DELTA_RULE.params, Param("chunk", "u32")),
    tolerance="f32_reduction",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=(-(-dims["Dv"] // 8), dims["Nv"], dims["S"]), block=256),
            fits=lambda dims: _constants(dims)["n_rows"] != 0,
            constants=_constants,
        ),
    ),
    requires=DELTA_RULE.requires,
    examples=DELTA_RULE.examples,
)
