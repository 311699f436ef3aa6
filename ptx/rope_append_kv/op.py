"""rope_append_kv: rotate q and k by position, append k and v to the cache.

With c = cos(p f_j), s = sin(p f_j), p = positions[t], f = inv_freq, j = 0 .. J-1, the pair
(a, b) = (x[j], x[j+J]), or (x[2j], x[2j+1]) when interleaved, becomes (a c - b s, b c + a s):
q = rot(q);  k_cache[slots[t]] = rot(k[t]);  v_cache[slots[t]] = v[t]

shapes    q f32 [T, H, E]; k, v f32 [T, G, E]; positions, slots i32 [T]; inv_freq f64 [J];
          k_cache, v_cache f32 [C, G, E]
domain    E = 2 J; positions >= 0; 0 <= slots[t] < C, no two equal; T, H, G >= 1
effects   reads and writes all of q; writes the cache rows named by slots, no others; no overlap
rounding  angle, cos and sin in f64, rounded to f32 once; then float32 arithmetic
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="rope_append_kv",
    params=(
        buf("q", "f32", "T H E", out=True),
        buf("k", "f32", "T G E"),
        buf("v", "f32", "T G E"),
        buf("positions", "i32", "T"),
        buf("slots", "i32", "T"),
        buf("inv_freq", "f64", "J"),
        buf("k_cache", "f32", "C G E", out=True, partial=True),
        buf("v_cache", "f32", "C G E", out=True, partial=True),
        Param("H", "u32"),
        Param("G", "u32"),
        Param("E", "u32"),
        Param("interleaved", "bool"),
    ),
    tolerance="f32_elementwise",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["T"], block=64),
            constants=lambda dims: {"entry": "rope_append_kv", "pages": False},
        ),
    ),
    requires={"E = 2 J": lambda dims: dims["E"] == 2 * dims["J"]},
    examples=({"T": 1, "H": 9, "G": 3, "E": 64, "J": 32, "C": 2048},),
)
