"""rope_append_pages: rotate q and k by position, append k and v to bf16 pages.

With c = cos(p f_j), s = sin(p f_j), p = positions[t], f = inv_freq, j = 0 .. J-1, the pair
(a, b) = (x[j], x[j+J]), or (x[2j], x[2j+1]) when interleaved, becomes (a c - b s, b c + a s);
with page, row = slots[t] div B, slots[t] mod B:
q = rot(q);  k_pages[page,:,row] = bf16(rot(k[t]));  v_pages[page,:,row] = bf16(v[t])

shapes    q f32 [T, H, E]; k, v f32 [T, G, E]; positions, slots i32 [T]; inv_freq f64 [J];
          k_pages, v_pages bf16 [P, G, B, E]
domain    E = 2 J; positions >= 0; 0 <= slots[t] < P B, no two equal; T, H, G >= 1
effects   reads and writes all of q; writes the rows of pages named by slots, no others; no overlap
rounding  angle, cos and sin in f64, rounded to f32 once; then float32 arithmetic; what goes into
          pages is rounded to bf16 once, ties to even
"""

from collections.abc import Mapping

from ptx.op import Constant, Dims, Kernel, Launch, Op, Param, buf

# Cells of a lane, and widths of a head that are a part of a warp, so that a pair never leaves it.
CELLS, WIDTHS, MAX_THREADS = 4, (16, 32, 64, 128), 1024


def _threads(dims: Dims) -> int:
    """A lane for four cells of every head of q, k and v, in whole warps."""
    return 32 * -(-(dims["H"] + 2 * dims["G"]) * dims["E"] // (32 * CELLS))


def _constants(pdl: bool, dims: Dims) -> Mapping[str, Constant]:
    return {"pdl": pdl, "threads": _threads(dims), "width": dims["E"]}


def _tuned(target: str) -> Kernel:
    """One block per token; on sm_90a a programmatic launch."""
    pdl = target == "sm_90a"
    return Kernel(
        target,
        lambda dims: Launch(grid=dims["T"], block=_threads(dims), programmatic=pdl),
        fits=lambda dims: dims["E"] in WIDTHS and _threads(dims) <= MAX_THREADS,
        special=("griddepcontrol",) if pdl else (),
        constants=lambda dims: _constants(pdl, dims),
    )


OP = Op(
    name="rope_append_pages",
    params=(
        buf("q", "f32", "T H E", out=True),
        buf("k", "f32", "T G E"),
        buf("v", "f32", "T G E"),
        buf("positions", "i32", "T"),
        buf("slots", "i32", "T"),
        buf("inv_freq", "f64", "J"),
        buf("k_pages", "bf16", "P G B E", out=True, partial=True),
        buf("v_pages", "bf16", "P G B E", out=True, partial=True),
        Param("H", "u32"),
        Param("G", "u32"),
        Param("E", "u32"),
        Param("B", "u32"),
        Param("interleaved", "bool"),
    ),
    # For the pages; the tests hold q to f32_elementwise.
    tolerance="bf16_output",
    kernels=(
        _tuned("sm_90a"),
        _tuned("sm_80"),
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["T"], block=64),
            constants=lambda dims: {"entry": "rope_append_pages", "pages": True},
        ),
    ),
    requires={"E = 2 J": lambda dims: dims["E"] == 2 * dims["J"]},
    examples=({"T": 1, "H": 9, "G": 3, "E": 64, "J": 32, "P": 128, "B": 16},),
)
