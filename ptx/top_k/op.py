"""top_k: ids[t,i], values[t,i] = the cell that ranks i-th in row t of logits, and what it holds

Cells rank by value, the highest first, and equal ones by id, the lowest first; -0 equals 0 and is
written as 0. A row with a NaN anywhere has ids -1 and values 0.

shapes    logits f32 [T, V]; values f32 [T, K]; ids i32 [T, K]; work i64 [T, W]
domain    any float32, infinities and NaN included; work all zero, W = 1 + K ceil(V / 2048);
          1 <= K <= 64, K <= V; T >= 1
effects   writes all of values and ids; uses work and leaves it all zero again; no overlap
rounding  none
"""

from collections.abc import Mapping

from ptx.op import Constant, Kernel, Launch, Op, Param, buf

# Keys that a block sorts at once, a pair for each thread; as many cells of a row are a block's in
# the tuned text.
SORTED, THREADS, MAX_K = 2048, 1024, 64


def blocks(n_vocab: int) -> int:
    """Blocks of the tuned text for a row."""
    return -(-n_vocab // SORTED)


def work_words(n_vocab: int, k: int) -> int:
    """Words of work for a row: the arrivals, then K keys of each block."""
    return 1 + k * blocks(n_vocab)


def _kernel(target: str) -> Kernel:
    """One block for a row, or many; on sm_90a a programmatic launch."""
    wide, pdl = target != "portable", target == "sm_90a"
    constants: Mapping[str, Constant] = {
        "wide": wide, "pdl": pdl, "n_sorted": SORTED, "log_sorted": SORTED.bit_length() - 1,
        "threads": THREADS,
    }
    return Kernel(
        target,
        lambda dims: Launch(
            (blocks(dims["V"]) if wide else 1, dims["T"]), THREADS, programmatic=pdl
        ),
        fits=lambda dims: dims["T"] <= 65_535,
        special=("griddepcontrol",) if pdl else (),
        constants=lambda dims: constants,
    )


OP = Op(
    name="top_k",
    params=(
        buf("logits", "f32", "T V"),
        buf("values", "f32", "T K", out=True),
        buf("ids", "i32", "T K", out=True),
        buf("work", "i64", "T W", out=True, partial=True),
        Param("V", "u32"),
        Param("K", "u32"),
        Param("W", "u32"),
    ),
    tolerance="exact",
    kernels=(_kernel("sm_90a"), _kernel("sm_80"), _kernel("portable")),
    requires={
        "K from 1 to 64, and no more than V": lambda dims: dims["K"] <= min(MAX_K, dims["V"]),
        "W = 1 + K ceil(V / 2048)": lambda dims: dims["W"] == work_words(dims["V"], dims["K"]),
    },
    examples=tuple(
        {"T": 1, "V": 248320, "K": k, "W": work_words(248320, k)} for k in (8, 64)
    ),
)
