"""read_bytes: sums[z] = the sum of the words x[z,p,c] over p and c, mod 2^32

Every word is read once and nothing else is done, so that a launch takes what reading takes: the
ceiling that the benchmark holds other ops against. No model has it in its steps.

shapes    x u32 [Z, P, 4]; sums u32 [Z]
domain    any words; Z >= 1; 1 <= P < 2^30; x starts at a multiple of 16 bytes
effects   writes all of sums; sums does not overlap x
rounding  none
"""

from ptx.op import Constant, Dims, Kernel, Launch, Op, Param, buf

THREADS = 256
# Lines of 16 bytes that a thread asks for in one round.
MOST_LOADS = 16
MAX_PART = (1 << 30) - 1


def loads_of_a_thread(n_lines: int) -> int:
    """Lines of a round for each thread: the most that come out even over a part, or 0."""
    each, rest = divmod(n_lines, THREADS)
    if rest or not each:
        return 0
    return max(n for n in range(1, MOST_LOADS + 1) if each % n == 0)


def _tuned(dims: Dims) -> dict[str, Constant]:
    n_loads = loads_of_a_thread(dims["P"])
    return {"threads": THREADS, "n_loads": n_loads, "n_rounds": dims["P"] // (THREADS * n_loads)}


OP = Op(
    name="read_bytes",
    params=(
        buf("x", "u32", "Z P 4", align=16),
        buf("sums", "u32", "Z", out=True),
        Param("P", "u32"),
    ),
    tolerance="exact",
    kernels=(
        Kernel(
            "sm_80",
            lambda dims: Launch(grid=dims["Z"], block=THREADS),
            fits=lambda dims: loads_of_a_thread(dims["P"]) > 0,
            constants=_tuned,
        ),
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["Z"], block=THREADS),
            constants=lambda dims: {"threads": THREADS},
        ),
    ),
    requires={
        "4 words in a line": lambda dims: dims["4"] == 4,
        "P < 2^30": lambda dims: dims["P"] <= MAX_PART,
    },
    # 16 GiB in parts of 16 and of 64 KiB; the int4 weights of 34,816 rows of 5,120.
    examples=(
        {"Z": 1 << 20, "P": 1024, "4": 4},
        {"Z": 1 << 18, "P": 4096, "4": 4},
        {"Z": 1870, "P": 3072, "4": 4},
    ),
)
