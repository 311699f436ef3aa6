"""delta_rule: o[t,j] = S q after S = exp(g) S; S = S + (beta (v - S k)) k^T, token by token

A row of qkv is the blocks q | k | v, head-major, Nk = (C - Nv Dv) / (2 Dk) heads in q and in k.
q = l2(q[t,i]) / sqrt(Dk), k = l2(k[t,i]), i = floor(j Nk / Nv), v = v[t,j]; g, beta = [t,j], with
l2(x) = x / sqrt(sum(x^2) + 1e-6): nothing else wants normalised keys, so it is no op of its own.
Sequence s is the rows starts[s] .. starts[s+1]-1: S[j] begins as state[state_in[s],j], and its
last value goes to state[state_out[s],j]. The prediction S k reads the decayed S, and o the
written one.

shapes    qkv f32 [T, C]; g, beta f32 [T, Nv]; starts i32 [S+1]; state_in, state_out i32 [S];
          state f32 [P, Nv, Dv, Dk]; o f32 [T, Nv, Dv]
domain    Nk >= 1 divides Nv; g <= 0, -inf allowed; starts rises strictly from 0 to T; slots in
          0 .. P-1; no state_out[s] is the state_in or state_out of another sequence (it may be
          its own state_in)
effects   writes all of o, and the slots of state named by state_out, no others; no overlap
rounding  float32 arithmetic, S included; the order of sums is free and the same for every token,
          so that no split of a sequence into calls changes a bit of o or state
"""

from ptx.op import Dims, Kernel, Launch, Op, Param, buf


def key_heads_divide(dims: Dims) -> bool:
    """Whether C is 2 Nk Dk + Nv Dv for an Nk that divides Nv."""
    n_key_heads, rest = divmod(dims["C"] - dims["Nv"] * dims["Dv"], 2 * dims["Dk"])
    return n_key_heads >= 1 and rest == 0 and dims["Nv"] % n_key_heads == 0


OP = Op(
    name="delta_rule",
    params=(
        buf("qkv", "f32", "T C"),
        buf("g", "f32", "T Nv"),
        buf("beta", "f32", "T Nv"),
        buf("starts", "i32", "S+1"),
        buf("state_in", "i32", "S"),
        buf("state_out", "i32", "S"),
        buf("state", "f32", "P Nv Dv Dk", out=True, partial=True),
        buf("o", "f32", "T Nv Dv", out=True),
        Param("C", "u32"),
        Param("Nv", "u32"),
        Param("Dv", "u32"),
        Param("Dk", "u32"),
        Param("S", "u32"),
    ),
    tolerance="f32_reduction",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=(-(-dims["Dv"] // 8), dims["Nv"], dims["S"]), block=256),
            constants=lambda dims: {"n_parts": -(-dims["Dk"] // 32)},
        ),
    ),
    requires={
        "one more cell in starts than sequences": lambda dims: dims["S+1"] == dims["S"] + 1,
        "C = 2 Nk Dk + Nv Dv with Nk dividing Nv": key_heads_divide,
    },
    examples=(
        {"T": 1, "C": 10240, "Nv": 48, "Dv": 128, "Dk": 128, "S": 1, "S+1": 2, "P": 2},
    ),
)
