"""Protects `argmax`: ties, infinities, NaN, row invariance."""

import numpy as np
import pytest

from ptx.argmax.op import OP

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(("n_tokens", "n_vocab"), [(1, 1), (3, 63), (65, 129), (2, 49152)])
def test_finds_the_planted_maximum(bench, n_tokens, n_vocab):
    rng = np.random.default_rng(0)
    logits = rng.random((n_tokens, n_vocab))
    ids = rng.integers(0, n_vocab, n_tokens)
    logits[np.arange(n_tokens), ids] = 2
    assert bench.run(OP, logits=logits)["ids"].tolist() == ids.tolist()
    bench.check_rows_alone(OP, ("logits",), logits=logits)


SPECIAL_ROWS = [
    ([1, 3, 3, 2], 1),
    ([0.0, -0.0, 0.0, -1], 0),
    ([-0.0, 0.0, 0.0, -1], 0),
    ([-INF, -INF, -INF, -INF], 0),
    ([-INF, -5, -INF, -6], 1),
    ([1, INF, INF, 2], 1),
    ([1, 2, NAN, INF], -1),
    ([NAN, NAN, NAN, NAN], -1),
    ([9, 1, 2, NAN], -1),
]


@pytest.mark.parametrize(("row", "want"), SPECIAL_ROWS, ids=str)
def test_special_rows(bench, row, want):
    plain = [4, 3, 2, 5]
    assert bench.run(OP, logits=[plain, row, plain])["ids"].tolist() == [3, want, 3]


@pytest.mark.parametrize(("n_tokens", "n_vocab"), [(1, 1), (3, 255), (2, 257), (2, 1025)])
def test_kernels(kernels, n_tokens, n_vocab):
    logits = np.random.default_rng(n_vocab).integers(0, 9, (n_tokens, n_vocab))
    for bench in kernels(OP):
        bench.check(OP, logits=logits)


def test_special_rows_in_kernels(kernels):
    # Many columns apart as well, so that ties meet across threads and across rounds of one thread.
    rows = [row for row, _ in SPECIAL_ROWS]
    wide = np.full((len(rows), 1028), -INF)
    wide[:, [0, 255, 256, 1027]] = rows
    columns = np.array([0, 255, 256, 1027])
    for bench in kernels(OP):
        got = bench.run(OP, logits=rows)["ids"]
        assert got.tolist() == [want for _, want in SPECIAL_ROWS]
        got = bench.run(OP, logits=wide)["ids"]
        assert got.tolist() == [columns[want] if want >= 0 else -1 for _, want in SPECIAL_ROWS]
