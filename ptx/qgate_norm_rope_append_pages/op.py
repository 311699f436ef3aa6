"""qgate_norm_rope_append_pages: split q from its gate, norm and rotate q and k, append k and v.

With n(x, w) = x / sqrt(mean_e(x^2) + eps) * (1 + w) over a head, c = cos(p f_j), s = sin(p f_j),
p = positions[t], f = inv_freq, rot turns the pairs (a, b) = (x[j], x[j+J]), j = 0 .. J-1, into
(a c - b s, b c + a s) and leaves x[2J], x[2J+1], .. alone. A row of qg holds the query in 0 .. E-1
and the gate in E .. 2E-1; with page, row = slots[t] div B, slots[t] mod B:
q = rot(n(qg[:E], w_q));  gate = qg[E:];  k_pages[page,:,row] = bf16(rot(n(k[t], w_k)));
v_pages[page,:,row] = bf16(v[t])

shapes    qg f32 [T, H, 2E]; k, v f32 [T, G, E]; w_q, w_k f32 [E]; positions, slots i32 [T];
          inv_freq f64 [J]; q, gate f32 [T, H, E]; k_pages, v_pages bf16 [P, G, B, E]
domain    2 J <= E; positions >= 0; 0 <= slots[t] < P B, no two equal; eps finite, > 0; T, H, G >= 1
effects   writes all of q and gate, and the rows of pages named by slots, no others; no overlap
rounding  angle, cos and sin in f64, rounded to f32 once; then float32 arithmetic, the order of
          the mean's sum is free and does not depend on T; gate holds the bits of qg; what goes
          into pages is rounded to bf16 once, ties to even
"""

from collections.abc import Mapping

from ptx.op import Constant, Dims, Kernel, Launch, Op, Param, buf

# Cells that a warp takes at once, four for each lane.
WARP_CELLS = 128
MAX_WIDTH = 4 * WARP_CELLS
# A pair lies in two lanes of one warp, a power of two apart.
PAIRS = (4, 8, 16, 32, 64)
# Heads of a block, one for each warp. Few tokens are spread over many blocks; of many, each block
# takes all heads where it can, so that the angles of a token are worked out once.
FEW_TOKENS, FEW_HEADS, MOST_HEADS = 16, 4, 32


def _blocks(dims: Dims) -> int:
    """Blocks of a token."""
    heads = dims["H"] + dims["G"]
    return -(-heads // (FEW_HEADS if dims["T"] <= FEW_TOKENS else MOST_HEADS))


def _warps(dims: Dims) -> int:
    """Warps of a block, of which the last block may not need all."""
    return -(-(dims["H"] + dims["G"]) // _blocks(dims))


def _constants(pdl: bool, dims: Dims) -> Mapping[str, Constant]:
    return {
        "pdl": pdl, "n_warps": _warps(dims), "width": dims["E"], "n_pairs": dims["J"],
        "warp_cells": WARP_CELLS,
    }


def _tuned(target: str) -> Kernel:
    """One warp per token and head; on sm_90a a programmatic launch."""
    pdl = target == "sm_90a"
    return Kernel(
        target,
        lambda dims: Launch((dims["T"], _blocks(dims)), 32 * _warps(dims), programmatic=pdl),
        fits=lambda dims: (
            dims["E"] % WARP_CELLS == 0 and dims["E"] <= MAX_WIDTH and dims["J"] in PAIRS
        ),
        special=("griddepcontrol",) if pdl else (),
        constants=lambda dims: _constants(pdl, dims),
    )


OP = Op(
    name="qgate_norm_rope_append_pages",
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
        buf("k_pages", "bf16", "P G B E", out=True, partial=True),
        buf("v_pages", "bf16", "P G B E", out=True, partial=True),
        Param("H", "u32"),
        Param("G", "u32"),
        Param("E", "u32"),
        Param("J", "u32"),
        Param("B", "u32"),
        Param("eps", "f32"),
    ),
    # For the pages; the tests hold q to f32_reduction.
    tolerance="bf16_output",
    kernels=(
        _tuned("sm_90a"),
        _tuned("sm_80"),
        Kernel(
            "portable",
            lambda dims: Launch(grid=(dims["T"], dims["H"] + dims["G"]), block=32),
            constants=lambda dims: {"entry": "qgate_norm_rope_append_pages", "pages": True},
        ),
    ),
    requires={
        "heads of qg twice as wide as those of q": lambda dims: dims["2E"] == 2 * dims["E"],
        "2 J <= E": lambda dims: 2 * dims["J"] <= dims["E"],
    },
    examples=tuple(
        {"T": n_tokens, "H": 24, "G": 4, "E": 256, "2E": 512, "J": 32, "P": 128, "B": 16}
        for n_tokens in (1, 2048)
    ),
)
