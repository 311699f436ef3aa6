"""encode_e4m3_rows: codes[n,k] = e4m3(w[n,k] / scales[n])

where scales[n] = max(a / 448, 2^-126), a = max |w[n,:]|, or 1 where a is 0;
bad[n] = the lowest k with a NaN or an infinity, or -1. The codes of such a row are all 0x7F, which
is NaN, and its scale is 0: whoever reads them gets NaN. Rows are weights of one output, or the
activations of one token.

shapes    w f32 [N, K]; codes e4m3 [N, K]; scales f32 [N]; bad i32 [N]
domain    any float32; K % 64 == 0; N, K >= 1
effects   writes all of codes, scales and bad; no overlap
rounding  each division in float32, to nearest, subnormals kept; then to the nearest e4m3, ties to
          even, past 448 it stays at 448 (no quotient rounds past it); the sign of a zero is kept
"""

from collections.abc import Mapping

from ptx.op import Constant, Dims, Kernel, Launch, Op, Param, buf

# Threads of a block at most, and vectors of four cells that one thread keeps in registers.
# 5,120 cells are 640 threads of two, 17,408 are 896 threads of five.
MAX_THREADS, MAX_VECTORS = 896, 8
CELLS = 4  # of a vector


def _vectors(dims: Dims) -> int:
    """Vectors of a thread: two at least, but no two where the first alone would pass the row."""
    least = 2 if dims["K"] >= 2 * 32 * CELLS else 1
    return max(least, -(-dims["K"] // (CELLS * MAX_THREADS)))


def _threads(dims: Dims) -> int:
    """Whole warps, no more of them than have something to do."""
    return 32 * -(-dims["K"] // (32 * CELLS * _vectors(dims)))


def _plan(dims: Dims) -> Mapping[str, Constant]:
    """Threads, vectors of each, and whether some thread lacks its last one."""
    threads, vectors = _threads(dims), _vectors(dims)
    return {
        "threads": threads, "vectors": vectors, "tail": threads * vectors * CELLS != dims["K"],
    }


def _row(target: str) -> Kernel:
    """One block per row, every cell in a register; on sm_90a a programmatic launch."""
    pdl = target == "sm_90a"
    return Kernel(
        target,
        lambda dims: Launch(grid=dims["N"], block=_threads(dims), programmatic=pdl),
        fits=lambda dims: _vectors(dims) <= MAX_VECTORS,
        special=("cvt.rn.satfinite.e4m3x2.f32", *(("griddepcontrol",) if pdl else ())),
        constants=lambda dims: {"pdl": pdl, **_plan(dims)},
    )


OP = Op(
    name="encode_e4m3_rows",
    params=(
        buf("w", "f32", "N K", align=16),
        buf("codes", "e4m3", "N K", out=True, align=16),
        buf("scales", "f32", "N", out=True),
        buf("bad", "i32", "N", out=True),
        Param("K", "u32"),
    ),
    tolerance="exact",
    kernels=(
        _row("sm_90a"),
        _row("sm_89"),
        Kernel("portable", lambda dims: Launch(grid=dims["N"], block=256)),
    ),
    requires={"K % 64 == 0": lambda dims: dims["K"] % 64 == 0},
    examples=({"N": 17408, "K": 5120}, {"N": 1, "K": 5120}, {"N": 1, "K": 17408}),
)
