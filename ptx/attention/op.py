"""attention: y[t,h] = sum_u softmax_u(q[t,h] . k[u,g] / sqrt(E)) v[u,g], u = 0 .. positions[t]

where k[u], v[u] are the rows table[seq_of_token[t], u] of the caches and g = floor(h G / H).

shapes    q, y f32 [T, H, E]; k_cache, v_cache f32 [C, G, E]; table i32 [S, W];
          seq_of_token, positions i32 [T]
domain    G divides H; 0 <= seq_of_token[t] < S; 0 <= positions[t] < W; the table's cells that a
          token sees are in 0 .. C-1, the others are never read; T, S, W, H, G, E >= 1
effects   writes all of y; y overlaps no input
rounding  float32 arithmetic; the order of sums is free and depends on positions[t] alone
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="attention",
    params=(
        buf("q", "f32", "T H E"),
        buf("k_cache", "f32", "C G E"),
        buf("v_cache", "f32", "C G E"),
        buf("table", "i32", "S W"),
        buf("seq_of_token", "i32", "T"),
        buf("positions", "i32", "T"),
        buf("y", "f32", "T H E", out=True),
        Param("H", "u32"),
        Param("G", "u32"),
        Param("E", "u32"),
        Param("W", "u32"),
    ),
    tolerance="f32_reduction",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=(dims["T"], dims["H"]), block=32),
            constants=lambda dims: {"n_parts": -(-dims["E"] // 32)},
        ),
    ),
    requires={"G divides H": lambda dims: dims["H"] % dims["G"] == 0},
    examples=(
        {"T": 1, "H": 9, "G": 3, "E": 64, "C": 2048, "S": 1, "W": 2048},
        {"T": 1, "H": 24, "G": 4, "E": 256, "C": 2048, "S": 1, "W": 2048},
    ),
)
