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


# The kernel for tensor cores: steps of 16 tokens, warps that prepare them in turn, each with two
# stages of its own, and as many warps with 16 rows of S as Dv allows, up to MAX_ROW_WARPS.
# Stages fit 99 KB. Four that prepare, with 192 KB on an H200, took 1.43 times as long as two:
# KNOWLEDGE/optimizations/gated-delta-net-on-tensor-cores-and-in-one-launch.md
STEP, MAX_ROW_WARPS, N_PREPARE = 16, 4, 2
# Below this many tokens a sequence, on average, steps are mostly zeros.
MIN_TOKENS = 16
# Rows of T and P, in floats: eight rows that are 24 apart share no bank.
T_STRIDE = 24


def _n_rows(dims: Dims) -> int:
    """Warps with rows of S: a power of two."""
    n_rows = MAX_ROW_WARPS
    while dims["Dv"] % (STEP * n_rows):
        n_rows //= 2
    return n_rows


def _stage(dims: Dims) -> dict[str, Constant]:
    """What the kernel is rendered with; `_at` is a place in a stage, in bytes."""
    n_rows = _n_rows(dims)
    row_bytes, v_stride = 4 * dims["Dk"], 4 * (STEP * n_rows + 4)
    # Rows of k, of q, of v, T, P, then g, beta, c and D[15, :].
    v_at = 2 * STEP * row_bytes
    t_at = v_at + STEP * v_stride
    p_at = t_at + 4 * STEP * T_STRIDE
    g_at = p_at + 4 * STEP * T_STRIDE
    return {
        "d_key": dims["Dk"], "n_rows": n_rows, "slice": STEP * n_rows,
        "n_prepare": N_PREPARE, "n_stages": 2 * N_PREPARE,
        "row_bytes": row_bytes, "v_stride": v_stride, "t_stride": T_STRIDE, "v_at": v_at,
        "t_at": t_at, "p_at": p_at, "g_at": g_at, "beta_at": g_at + 64, "c_at": g_at + 128,
        "stage_bytes": -(-(g_at + 256) // 128) * 128,
    }


def _tensor_launch(dims: Dims) -> Launch:
    stage = _stage(dims)
    return Launch(
        grid=(dims["Dv"] // int(stage["slice"]), dims["Nv"], dims["S"]),
        block=32 * (int(stage["n_rows"]) + N_PREPARE),
        shared_bytes=int(stage["n_stages"]) * int(stage["stage_bytes"]),
    )


def _tensor_fits(dims: Dims) -> bool:
    return (
        dims["Dk"] in (32, 64, 128) and dims["Dv"] % STEP == 0
        and dims["T"] >= MIN_TOKENS * dims["S"]
    )


OP = Op(
    name="delta_rule_chunked",
    params=(*DELTA_RULE.params, Param("chunk", "u32")),
    tolerance="f32_reduction",
    kernels=(
        Kernel(
            "sm_80", _tensor_launch, _tensor_fits, ("mma.sync", "ldmatrix", "cp.async"), _stage
        ),
        Kernel(
            "portable",
            lambda dims: Launch(grid=(-(-dims["Dv"] // 8), dims["Nv"], dims["S"]), block=256),
            fits=lambda dims: _constants(dims)["n_rows"] != 0,
            constants=_constants,
        ),
    ),
    requires=DELTA_RULE.requires,
    examples=(*DELTA_RULE.examples, {**DELTA_RULE.examples[0], "T": 2048}),
)
