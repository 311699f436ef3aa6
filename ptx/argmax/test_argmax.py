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


@pytest.mark.parametrize(
    ("row", "want"),
    [
        ([1, 3, 3, 2], 1),
        ([0.0, -0.0, 0.0, -1], 0),
        ([-0.0, 0.0, 0.0, -1], 0),
        ([-INF, -INF, -INF, -INF], 0),
        ([-INF, -5, -INF, -6], 1),
        ([1, INF, INF, 2], 1),
        ([1, 2, NAN, INF], -1),
        ([NAN, NAN, NAN, NAN], -1),
        ([9, 1, 2, NAN], -1),
    ],
    ids=str,
)
def test_special_rows(bench, row, want):
    plain = [4, 3, 2, 5]
    assert bench.run(OP, logits=[plain, row, plain])["ids"].tolist() == [3, want, 3]
