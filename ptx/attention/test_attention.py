"""Protects `attention`: the formula, what a token may see, and bits that ignore batch and slots."""

import numpy as np
import pytest

from ptx.attention.op import OP

SHAPES = [
    # sequences' visible cells, H, G, E
    ((1,), 1, 1, 1),
    ((1, 2, 3), 4, 4, 10),
    ((15, 17, 63), 9, 3, 64),
    ((65, 5), 6, 1, 7),
    ((300,), 15, 5, 64),
]


def _case(lengths, n_heads, n_kv_heads, d_head, n_rows=None, scatter=True, seed=0):
    """Sequences in a cache whose other rows are NaN, with one token at every third position."""
    rng = np.random.default_rng(seed)
    n_rows = n_rows or sum(lengths) + 5
    table = np.full((len(lengths), max(lengths) + 3), -(2**31))
    order = rng.permutation(n_rows) if scatter else np.arange(n_rows)
    caches = [np.full((n_rows, n_kv_heads, d_head), np.nan) for _ in "kv"]
    start = 0
    tokens = []
    for seq, length in enumerate(lengths):
        cells = order[start : start + length]
        start += length
        table[seq, :length] = cells
        for cache in caches:
            cache[cells] = rng.standard_normal((length, n_kv_heads, d_head))
        tokens += [(seq, position) for position in {*range(0, length, 3), length - 1}]
    seq_of_token, positions = np.array(tokens)[rng.permutation(len(tokens))].T
    return {
        "q": 2 * rng.standard_normal((len(tokens), n_heads, d_head)),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "table": table,
        "seq_of_token": seq_of_token,
        "positions": positions,
    }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scatter", [False, True], ids=["consecutive", "scattered"])
def test_against_float64(bench, shape, scatter):
    bench.check(OP, **_case(*shape, scatter=scatter))


def test_against_a_plain_loop(bench):
    case = _case((5, 4), 6, 3, 8)
    got = bench.run(OP, **case)["y"]
    for token, (seq, position) in enumerate(
        zip(case["seq_of_token"], case["positions"], strict=True)
    ):
        for head in range(6):
            rows = [(r, head // 2) for r in case["table"][seq, : position + 1]]
            scores = [case["q"][token, head] @ case["k_cache"][row] / 8**0.5 for row in rows]
            weights = np.exp(scores) / np.exp(scores).sum()
            want = sum(w * case["v_cache"][row] for w, row in zip(weights, rows, strict=True))
            assert got[token, head] == pytest.approx(want, abs=1e-5)


def test_one_visible_cell_gives_its_value(bench):
    case = _case((1,), 4, 2, 6)
    y = bench.run(OP, **case)["y"]
    value = case["v_cache"][case["table"][0, 0]].astype(np.float32)
    assert y[0].tobytes() == np.repeat(value, 2, axis=0).tobytes()


def test_large_scores_do_not_overflow(bench):
    case = _case((40,), 4, 2, 6)
    case["q"] = case["q"] * 1e4
    bench.check(OP, **case)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_do_not_depend_on_the_batch(bench, shape):
    bench.check_rows_alone(OP, ("q", "seq_of_token", "positions"), **_case(*shape))


@pytest.mark.parametrize(("n_heads", "n_kv_heads", "d_head"), [(9, 3, 64), (4, 4, 10), (6, 1, 7)])
@pytest.mark.parametrize("length", [1, 2, 16, 65, 500, 1500])
def test_bits_do_not_depend_on_where_the_rows_lie(bench, n_heads, n_kv_heads, d_head, length):
    shape = (n_heads, n_kv_heads, d_head)
    rng = np.random.default_rng(length)
    k, v = rng.standard_normal((2, length, n_kv_heads, d_head))
    q = rng.standard_normal((1, n_heads, d_head))
    seen = set()
    for scatter in (False, True, False, True):
        n_rows = length + int(rng.integers(1, 40))
        first = int(rng.integers(0, n_rows - length + 1))
        cells = rng.permutation(n_rows)[:length] if scatter else np.arange(first, first + length)
        k_cache, v_cache = np.full((2, n_rows, *shape[1:]), np.nan)
        k_cache[cells], v_cache[cells] = k, v
        # The sequence is another row of the table each time, at another width.
        table = np.full((int(rng.integers(1, 4)), length + int(rng.integers(0, 9))), -(2**31))
        table[-1, :length] = cells
        got = bench.run(
            OP, n_guard=int(rng.integers(1, 6)), q=q, k_cache=k_cache, v_cache=v_cache,
            table=table, seq_of_token=[len(table) - 1], positions=[length - 1],
        )
        seen.add(got["y"].tobytes())
    assert len(seen) == 1


def test_heads_that_do_not_divide_are_refused(bench):
    case = _case((3,), 4, 3, 6)
    with pytest.raises(Exception, match=r"attention: needs G divides H, found .*H=4.*G=3"):
        bench.run(OP, **case)


KERNEL_SHAPES = [
    ((1,), 1, 1, 1),
    ((1, 2, 3), 4, 4, 10),
    ((15, 17, 9), 9, 3, 64),
    ((20, 5), 6, 1, 7),
    ((33,), 2, 1, 256),
]


@pytest.mark.parametrize("shape", KERNEL_SHAPES, ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **_case(*shape))


def test_special_cases_in_kernels(kernels):
    for bench in kernels(OP):
        test_one_visible_cell_gives_its_value(bench)
        test_large_scores_do_not_overflow(bench)


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("q", "seq_of_token", "positions"), **_case((5, 4), 4, 2, 33))


def test_bits_of_kernels_do_not_depend_on_where_the_rows_lie(kernels):
    for bench in kernels(OP):
        seen = set()
        for scatter, seed in ((False, 0), (True, 0)):
            case = _case((19,), 2, 1, 40, scatter=scatter, seed=seed)
            whole = _case((19,), 2, 1, 40, scatter=False, seed=0)
            rng = np.random.default_rng(9)
            k, v = rng.standard_normal((2, 19, 1, 40))
            case["k_cache"][case["table"][0, :19]], case["v_cache"][case["table"][0, :19]] = k, v
            case["q"] = whole["q"]
            case["positions"] = whole["positions"]
            seen.add(bench.run(OP, **case)["y"].tobytes())
        assert len(seen) == 1
