"""qgate_norm_rope_append_kv: split q from its gate, norm and rotate q and k, append k and v.

With n(x, w) = x / sqrt(mean_e(x^2) + eps) * (1 + w) over a head, c = cos(p f_j), s = sin(p f_j),
p = positions[t], f = inv_freq, rot turns the pairs (a, b) = (x[j], x[j+J]), j = 0 .. J-1, into
(a c - b s, b c + a s) and leaves x[2J], x[2J+1], .. alone. A row of qg holds the query in 0 .. E-1
and the gate in E .. 2E-1:
q = rot(n(qg[:E], w_q));  gate = qg[E:];  k_cache[slots[t]] = rot(n(k[t], w_k));
v_cache[slots[t]] = v[t]

shapes    qg f32 [T, H, 2E]; k, v f32 [T, G, E]; w_q, w_k f32 [E]; positions, slots i32 [T];
          inv_freq f64 [J]; q, gate f32 [T, H, E]; k_cache, v_cache f32 [C, G, E]
domain    2 J <= E; positions >= 0; 0 <= slots[t] < C, no two equal; eps finite, > 0; T, H, G >= 1
effects   writes all of q and gate, and the cache rows named by slots, no others; no overlap
rounding  angle, cos and sin in f64, rounded to f32 once; then float32 arithmetic, the order of
          the mean's sum is free and does not depend on T; gate and v_cache hold bits of qg and v
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="qgate_norm_rope_append_kv",
    params=(
        buf("qg", "f32", "T H 2E"),
        buf("k", "f32", "T G E"),
        buf("v", "f32", "T G E"),
        buf("w_q", "f32", "E"),
        buf("w_k", "f32", "E"),
        buf("positions", "i32", "T"),
        buf("slots", "i32", "T"),
        buf("inv_freq", "f64", "J"),
        buf("q", "f32", "T H E", out=True),
        buf("gate", "f32", "T H E", out=True),
        buf("k_cache", "f32", "C G E", out=True, partial=True),
        buf("v_cache", "f32", "C G E", out=True, partial=True),
        Param("H", "u32"),
        Param("G", "u32"),
        Param("E", "u32"),
        Param("J", "u32"),
        Param("eps", "f32"),
    ),
    tolerance="f32_reduction",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=(dims["T"], dims["H"] + dims["G"]), block=32),
            constants=lambda dims: {"entry": "qgate_norm_rope_append_kv", "pages": False},
        ),
    ),
    requires={
        "heads of qg twice as wide as those of q": lambda dims: dims["2E"] == 2 * dims["E"],
        "2 J <= E": lambda dims: 2 * dims["J"] <= dims["E"],
    },
    examples=({"T": 1, "H": 24, "G": 4, "E": 256, "2E": 512, "J": 32, "C": 2048},),
)
