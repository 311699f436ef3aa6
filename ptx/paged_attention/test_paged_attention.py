"""Protects `paged_attention`: the formula, what a token sees, splits, bits that ignore the batch.

`case_of` serves the gated sibling too.
"""

import numpy as np
import pytest

from ptx.numerics import round_to_bf16, widen_bf16
from ptx.op import OpError
from ptx.paged_attention.op import OP

PER_TOKEN = ("q", "seq_of_token", "positions", "parts", "peaks", "arrived")
UNUSED = -(2**31)
SHAPES = [
    # visible cells of each token, sequences by token, H, G, E, B, Z
    ((1,), 2, 2, 4, 3, 1),
    ((1, 2, 3), 4, 4, 10, 4, 2),
    ((15, 17, 33, 34), 9, 3, 40, 16, 4),
    ((65, 5), 6, 1, 7, 5, 3),
    ((130,), 16, 1, 32, 16, 2),
]
# Pages of 16 cells: a split is at least four of them, each warp has every fourth.
KERNEL_SHAPES = [
    # One cell, a page less one, a page, one more.
    ((1, 15, 16, 17), 9, 3, 64, 16, 2),
    # A split's end, one more, three splits; rings that go round, also the deep one of one token.
    ((64, 65, 130), 6, 1, 64, 16, 4),
    ((150, 17), 8, 1, 64, 16, 1),
    ((210,), 1, 1, 64, 16, 1),
    # Eight splits, of which the merge takes seven at once.
    ((500,), 1, 1, 64, 16, 14),
    ((67,), 2, 2, 128, 16, 33),
    ((65,), 6, 1, 256, 16, 3),
]


def case_of(visible, n_heads, n_kv_heads, d_head, n_cells, n_splits, seed=0):
    """Tokens that see so many cells each; every second one is of the sequence of the one before.

    Pages lie anywhere; the other pages, and cells that no token sees, are NaN.
    """
    rng = np.random.default_rng(seed)
    n_tokens = len(visible)
    seq_of_token = np.arange(n_tokens) // 2
    n_seqs = seq_of_token[-1] + 1
    lengths = [max(n for n, s in zip(visible, seq_of_token, strict=True) if s == seq)
               for seq in range(n_seqs)]
    counts = [-(-length // n_cells) for length in lengths]
    n_pages = sum(counts) + 3
    order = rng.permutation(n_pages)
    pages = np.full((n_seqs, max(counts) + 2), UNUSED)
    caches = [np.full((n_pages, n_kv_heads, n_cells, d_head), 0x7FFF, np.uint16) for _ in "kv"]
    start = 0
    for seq, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        ids = pages[seq, :count] = order[start : start + count]
        start += count
        for cache in caches:
            cells = rng.standard_normal((count, n_kv_heads, n_cells, d_head))
            hidden = np.arange(count * n_cells).reshape(count, 1, n_cells, 1) >= length
            cache[ids] = round_to_bf16(np.where(hidden, np.nan, cells))
    return {
        "q": 2 * rng.standard_normal((n_tokens, n_heads, d_head)),
        "k_pages": caches[0],
        "v_pages": caches[1],
        "pages": pages,
        "seq_of_token": seq_of_token,
        "positions": np.array(visible) - 1,
        "parts": np.zeros((n_tokens, n_heads, n_splits, d_head)),
        "peaks": np.zeros((n_tokens, n_heads, n_splits, 2)),
        "arrived": np.zeros((n_tokens, n_kv_heads)),
    }


def reordered(case, order):
    """The same tokens in another order."""
    return {**case, **{name: case[name][order] for name in PER_TOKEN}}


# The reference


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **case_of(*shape))


def test_against_a_plain_loop(bench):
    case = case_of((5, 7, 4), 6, 3, 8, 3, 2)
    got = widen_bf16(bench.run(OP, **case)["y"])
    q = case["q"].astype(np.float32).astype(np.float64)
    k, v = (widen_bf16(case[name]).astype(np.float64) for name in ("k_pages", "v_pages"))
    for token, position in enumerate(case["positions"]):
        row = case["pages"][case["seq_of_token"][token]]
        for head in range(6):
            cells = [(row[u // 3], head // 2, u % 3) for u in range(position + 1)]
            weights = np.exp([q[token, head] @ k[cell] / 8**0.5 for cell in cells])
            want = sum(w * v[cell] for w, cell in zip(weights / weights.sum(), cells, strict=True))
            assert got[token, head] == pytest.approx(want, rel=2**-8, abs=1e-5)


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, PER_TOKEN, **case_of((15, 17, 33, 34), 9, 3, 64, 16, 4))


def test_shapes_that_do_not_fit_are_refused(bench):
    case = case_of((3,), 4, 2, 8, 4, 2)
    for name, shape, message in (
        ("k_pages", (4, 3, 4, 8), r"v_pages is \[4, 2, 4, 8\], expected \[4, 3, 4, 8\]"),
        ("peaks", (1, 4, 3, 2), r"peaks is \[1, 4, 3, 2\], expected \[1, 4, 2, 2\]"),
        ("peaks", (1, 4, 2, 3), "needs two numbers of a peak"),
        ("arrived", (1, 3), r"arrived is \[1, 3\], expected \[1, 2\]"),
        ("positions", (2,), r"positions is \[2\], expected \[1\]"),
    ):
        with pytest.raises(OpError, match=message):
            bench.run(OP, **{**case, name: np.zeros(shape, np.uint16)})
    with pytest.raises(OpError, match="needs G divides H"):
        bench.run(OP, **case_of((3,), 4, 3, 8, 4, 2))
    with pytest.raises(OpError, match="needs E up to 256"):
        bench.run(OP, **case_of((3,), 1, 1, 257, 4, 2))


# The kernels


@pytest.mark.parametrize("shape", SHAPES + KERNEL_SHAPES, ids=str)
def test_kernels(kernels, shape):
    case = case_of(*shape)
    for bench in kernels(OP, **case):
        bench.check(OP, **case)


def test_what_the_split_kernels_serve():
    split = {"B": 16, "E": 256, "H": 24, "G": 4, "Z": 33, "T": 16}
    for dims, fits in (
        ({}, True), ({"E": 64}, True), ({"H": 32}, True), ({"Z": 128}, True),
        ({"E": 80}, False), ({"B": 32}, False), ({"H": 36}, False), ({"Z": 129}, False),
    ):
        assert [k.fits({**split, **dims}) for k in OP.kernels] == [fits, fits, True]


def test_one_visible_cell_gives_its_value(kernels):
    case = case_of((1, 1), 4, 2, 64, 16, 2)
    for bench in kernels(OP, **case):
        y = bench.run(OP, **case)["y"]
        value = case["v_pages"][case["pages"][0, 0], :, 0]
        assert y[1].tobytes() == np.repeat(value, 2, axis=0).tobytes()


def test_large_scores_do_not_overflow(kernels):
    case = case_of((70,), 2, 1, 64, 16, 2)
    # Sums of whole numbers are exact, and so are the winners.
    rng = np.random.default_rng(1)
    case["q"] = 4096 * rng.integers(-8, 9, case["q"].shape)
    for bench in kernels(OP, **case):
        bench.check(OP, **case)


def test_rising_and_falling_scores(kernels):
    # The peak moves at every page, or never after the first.
    for sign in (1, -1):
        case = case_of((130,), 1, 1, 64, 16, 2)
        case["q"][:] = 1
        steps = sign * np.arange(9 * 16).reshape(9, 1, 16, 1) / 64
        cells = np.broadcast_to(steps, (9, 1, 16, 64))
        case["k_pages"][case["pages"][0, :9]] = round_to_bf16(cells)
        for bench in kernels(OP, **case):
            bench.check(OP, **case)


def test_kernels_rows_alone(kernels):
    # A token alone has a deeper ring on sm_90a, which no bit may show.
    case = case_of((20, 70), 1, 1, 64, 16, 2)
    for bench in kernels(OP, **case):
        bench.check_rows_alone(OP, PER_TOKEN, **case)


def test_a_launch_waits_for_the_one_before(kernels):
    case = case_of((70,), 2, 1, 64, 16, 3)
    for bench in kernels(OP, **case):
        device, buffers = bench.device, {}
        for param in OP.params:
            if param.shape is not None:
                shape = np.shape(case.get(param.name, case["q"]))
                buffers[param.name] = device.allocate(shape, param.dtype, param.name)
                if param.name in case:
                    device.upload(buffers[param.name], case[param.name])
        # A programmatic one may begin at once: it writes what this one writes.
        for _ in range(2):
            device.launch(bench.alone(OP), **buffers)
        want = bench.run(OP, **case)["y"]
        assert device.download(buffers["y"]).tobytes() == want.tobytes()
