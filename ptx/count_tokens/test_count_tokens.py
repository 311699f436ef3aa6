"""Protects `count_tokens`: cells hit many times, padding, the cells it leaves alone, any order."""

import numpy as np
import pytest

from ptx.count_tokens.op import OP

# Tokens, lanes, vocabulary.
SHAPES = [
    (1, 1, 1), (1, 3, 5), (7, 2, 65), (255, 4, 33), (256, 1, 257), (257, 3, 1025), (600, 5, 7)
]
LOW = np.iinfo(np.int32).min


def _inputs(n_tokens, n_lanes, n_vocab):
    """Random cells, some of them often, a fifth of the rows padding."""
    rng = np.random.default_rng(n_tokens)
    lanes = rng.integers(0, n_lanes, n_tokens)
    ids = rng.integers(0, n_vocab, n_tokens)
    delta = rng.choice([1, -1, 1, 1000], n_tokens)
    padding = rng.random(n_tokens) < 0.2
    lanes[padding] = -1
    # What padding holds beside its lane is never looked at.
    ids[padding] = rng.choice([0, -1, n_vocab, LOW], n_tokens)[padding]
    counts = rng.integers(-5, 100, (n_lanes, n_vocab))
    return {"counts": counts, "ids": ids, "lanes": lanes, "delta": delta}


def _counted(counts, ids, lanes, delta):
    """The counts after a plain loop."""
    want = np.array(counts, np.int32)
    for lane, token, change in zip(lanes, ids, delta, strict=True):
        if lane != -1:
            want[lane, token] += change
    return want


def _keeps_to_the_loop(bench, inputs):
    assert bench.run(OP, **inputs)["counts"].tolist() == _counted(**inputs).tolist()


def _window():
    """A window of 64 tokens that slid to the end of 300, and its counts."""
    tokens = np.random.default_rng(4).integers(0, 9, 300)
    counts = np.zeros((2, 9), np.int32)
    entered = {"ids": tokens, "lanes": np.full(300, 1), "delta": np.ones(300, int)}
    left = {"ids": tokens[:-64], "lanes": np.full(236, 1), "delta": np.full(236, -1)}
    both = {name: np.concatenate([entered[name], left[name]]) for name in entered}
    want = np.array([np.zeros(9, int), np.bincount(tokens[-64:], minlength=9)])
    return {"counts": counts, **both}, want


def _splits_and_orders_agree(bench, inputs):
    rng = np.random.default_rng(9)
    want = bench.run(OP, **inputs)["counts"]
    n_tokens = len(inputs["ids"])
    parts = np.split(rng.permutation(n_tokens), [1, n_tokens // 3])
    counts = inputs["counts"]
    for rows in parts:
        given = {name: inputs[name][rows] for name in ("ids", "lanes", "delta")}
        counts = bench.run(OP, n_guard=int(rng.integers(1, 6)), counts=counts, **given)["counts"]
    assert counts.tobytes() == want.tobytes()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_a_plain_loop(bench, shape):
    inputs = _inputs(*shape)
    bench.check(OP, **inputs)
    _keeps_to_the_loop(bench, inputs)


def _special(bench):
    # One cell from every t of three blocks, then two cells of a lane and padding between.
    n_tokens = 600
    same = {"ids": np.full(n_tokens, 2), "lanes": np.zeros(n_tokens, int)}
    delta = np.arange(n_tokens) - 300
    got = bench.run(OP, counts=[[1, 2, 3]], **same, delta=delta)["counts"]
    assert got.tolist() == [[1, 2, 3 - 300]]
    got = bench.run(OP, counts=[[1, 2], [3, 4]], ids=[1, LOW, 1, 0, 7], lanes=[1, -1, 1, 1, -1],
                    delta=[1, 50, 1, -1, LOW])["counts"]
    assert got.tolist() == [[1, 2], [2, 6]]
    got = bench.run(OP, counts=[[1, 2]], ids=[0, 1], lanes=[-1, -1], delta=[1, 1])["counts"]
    assert got.tolist() == [[1, 2]], "nothing but padding"
    ends = {"ids": [0, 0], "lanes": [0, 1], "delta": [2**31 - 1, -(2**31)]}
    assert bench.run(OP, counts=[[0], [0]], **ends)["counts"].tolist() == [[2**31 - 1], [LOW]]


def test_special_rows(bench):
    _special(bench)


def test_a_window_that_slides_keeps_its_last_tokens(bench):
    inputs, want = _window()
    assert bench.run(OP, **inputs)["counts"].tolist() == want.tolist()


def test_any_split_and_order_gives_the_same(bench):
    _splits_and_orders_agree(bench, _inputs(257, 3, 17))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    inputs = _inputs(*shape)
    for bench in kernels(OP):
        bench.check(OP, **inputs)
        _keeps_to_the_loop(bench, inputs)


def test_the_last_cell_of_a_large_pool_in_kernels(kernels):
    # 9 lanes of the real vocabulary.
    counts = np.zeros((9, 248320), np.int32)
    inputs = {"counts": counts, "ids": [248319, 0, 248319], "lanes": [8, 8, 7], "delta": [3, 4, 5]}
    for bench in kernels(OP):
        got = bench.run(OP, **inputs)["counts"]
        assert np.argwhere(got).tolist() == [[7, 248319], [8, 0], [8, 248319]]
        assert got[got != 0].tolist() == [5, 4, 3]


def test_special_rows_in_kernels(kernels):
    inputs, want = _window()
    for bench in kernels(OP):
        _special(bench)
        assert bench.run(OP, **inputs)["counts"].tolist() == want.tolist()


def test_any_split_and_order_gives_the_same_in_kernels(kernels):
    for bench in kernels(OP):
        _splits_and_orders_agree(bench, _inputs(257, 3, 17))
