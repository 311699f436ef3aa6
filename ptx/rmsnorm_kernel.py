"""Owns what the records of the norms of a whole row share: their kernels, best first.

It must not know which ops exist. One text, `rmsnorm_row.ptx`, serves rows as they are and rows that
something is added to first, results in float32 and in bf16, with and without a programmatic launch.
"""

from collections.abc import Mapping

from ptx.op import Constant, Dims, Kernel, Launch

# Threads of a block at most, and 128-bit vectors of a row that one thread keeps in registers.
# 5,120 cells are 640 threads of two vectors each, three such blocks on an SM of 2,048 threads.
MAX_THREADS, MAX_VECTORS = 640, 4
CELLS = 4  # of a vector


def kernels(entry: str, add: bool, bf16: bool) -> tuple[Kernel, ...]:
    """The kernels under the name `entry`; `add` adds x to h first, `bf16` rounds y to it."""
    return (
        _row("sm_90a", entry, add, bf16),
        _row("sm_80", entry, add, bf16),
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["T"], block=32),
            constants=lambda dims: {"entry": entry, "add": add, "bf16": bf16},
        ),
    )


def _row(target: str, entry: str, add: bool, bf16: bool) -> Kernel:
    """One block per row; on sm_90a a programmatic launch."""
    pdl = target == "sm_90a"
    constants: dict[str, Constant] = {"entry": entry, "add": add, "bf16": bf16, "pdl": pdl}
    return Kernel(
        target,
        lambda dims: Launch(grid=dims["T"], block=_threads(dims), programmatic=pdl),
        fits=lambda dims: dims["D"] % CELLS == 0 and _vectors(dims) <= MAX_VECTORS,
        special=("griddepcontrol",) if pdl else (),
        constants=lambda dims: {**constants, **_plan(dims)},
    )


def _vectors(dims: Dims) -> int:
    """Vectors of a thread."""
    return -(-dims["D"] // (CELLS * MAX_THREADS))


def _threads(dims: Dims) -> int:
    """Whole warps, no more of them than have something to do."""
    return 32 * -(-dims["D"] // (32 * CELLS * _vectors(dims)))


def _plan(dims: Dims) -> Mapping[str, Constant]:
    """Threads, vectors of each, and whether some thread lacks its last one."""
    threads, vectors = _threads(dims), _vectors(dims)
    tail = threads * vectors * CELLS != dims["D"]
    return {"threads": threads, "vectors": vectors, "tail": tail}
