"""Protects `argmax_wide`: ties and NaN across blocks, a workspace that is zero again."""

import numpy as np
import pytest

from ptx.argmax.test_argmax import INF, NAN, SPECIAL_ROWS
from ptx.argmax_wide.op import BLOCK_CELLS, OP
from ptx.launch_cases import launch_twice
from ptx.op import OpError


def _inputs(logits):
    logits = np.asarray(logits, np.float32)
    return {"logits": logits, "work": np.zeros((len(logits), 2), np.int64)}


def _ids(bench, logits):
    got = bench.run(OP, **_inputs(logits))
    assert not got["work"].any()
    return got["ids"].tolist()


def _special(bench):
    """Rows of four cells, side by side, and apart in threads, warps and blocks."""
    assert _ids(bench, [row for row, _ in SPECIAL_ROWS]) == [want for _, want in SPECIAL_ROWS]
    for columns in ([0, 1, 40, 300], [0, 255, BLOCK_CELLS, 2 * BLOCK_CELLS]):
        wide = np.full((len(SPECIAL_ROWS), columns[-1] + 1), -INF)
        wide[:, columns] = [row for row, _ in SPECIAL_ROWS]
        want = [columns[want] if want >= 0 else -1 for _, want in SPECIAL_ROWS]
        assert _ids(bench, wide) == want


@pytest.mark.parametrize(("n_tokens", "n_vocab"), [(1, 1), (3, 63), (65, 129), (2, 49152)])
def test_finds_the_planted_maximum(bench, n_tokens, n_vocab):
    rng = np.random.default_rng(0)
    logits = rng.random((n_tokens, n_vocab))
    ids = rng.integers(0, n_vocab, n_tokens)
    logits[np.arange(n_tokens), ids] = 2
    assert _ids(bench, logits) == ids.tolist()
    bench.check_rows_alone(OP, ("logits", "work"), **_inputs(logits))


def test_special_rows(bench, kernels):
    for each in (bench, *kernels(OP)):
        _special(each)


def test_two_words_of_work(bench):
    with pytest.raises(OpError, match="2 words of work"):
        bench.run(OP, logits=np.zeros((2, 3)), work=np.zeros((2, 3), np.int64))


@pytest.mark.parametrize(
    ("n_tokens", "n_vocab"), [(1, 1), (3, 255), (2, 257), (2, BLOCK_CELLS), (3, BLOCK_CELLS + 1)]
)
def test_kernels(kernels, n_tokens, n_vocab):
    logits = np.random.default_rng(n_vocab).integers(0, 9, (n_tokens, n_vocab))
    for bench in kernels(OP):
        bench.check(OP, **_inputs(logits))
        assert not bench.run(OP, **_inputs(logits))["work"].any()


def test_kernels_rows_alone(kernels):
    logits = np.random.default_rng(1).integers(0, 9, (2, BLOCK_CELLS + 33))
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("logits", "work"), **_inputs(logits))


def test_a_nan_of_another_block_is_seen(kernels):
    logits = np.zeros((2, 3 * BLOCK_CELLS))
    logits[0, 5], logits[0, 2 * BLOCK_CELLS + 7], logits[1, 2 * BLOCK_CELLS - 1] = 3, NAN, 3
    for bench in kernels(OP):
        assert _ids(bench, logits) == [-1, 2 * BLOCK_CELLS - 1]


def test_a_launch_waits_for_the_one_before(kernels):
    args = {**_inputs(np.arange(600).reshape(2, 300)), "ids": np.zeros(2, np.int32)}
    for bench in kernels(OP):
        want = bench.run(OP, **args)
        for name, array in launch_twice(bench, OP, **args).items():
            assert array.tobytes() == want[name].tobytes(), name
