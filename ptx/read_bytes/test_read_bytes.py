"""Protects `read_bytes`: every word counts once, at any length of a part, and no other."""

import numpy as np
import pytest

from ptx.op import OpError
from ptx.read_bytes.op import MOST_LOADS, OP, THREADS, loads_of_a_thread


def _words(n_parts, n_lines):
    return np.random.default_rng(n_lines).integers(0, 2**32, (n_parts, n_lines, 4), np.uint32)


@pytest.mark.parametrize(("n_parts", "n_lines"), [(1, 1), (3, 63), (2, 257), (5, 512)])
def test_sums_wrap(bench, n_parts, n_lines):
    x = _words(n_parts, n_lines)
    want = [sum(part.ravel().tolist()) % 2**32 for part in x]
    assert bench.run(OP, x=x)["sums"].tolist() == want


# One round of 1, 3 and 16 lines; 17 rounds of one line, 2 rounds of 9; no whole rounds.
@pytest.mark.parametrize("n_lines", [1, 65, 256, 768, 4096, 256 * 17, 256 * 18, 257])
def test_kernels(kernels, n_lines):
    x = _words(3, n_lines)
    for bench in kernels(OP, x=x):
        bench.check(OP, x=x)


def test_kernels_of_a_part_that_all_take(kernels):
    # The highest bits everywhere: a word that is missed or counted twice shows in the carry.
    x = np.full((2, 512, 4), 2**32 - 1, np.uint32)
    for bench in kernels(OP):
        assert bench.run(OP, x=x)["sums"].tolist() == [2**32 - 2048] * 2


def test_parts_are_apart(bench):
    x = _words(6, 256)
    bench.check_rows_alone(OP, ("x",), x=x)


def test_loads_come_out_even():
    assert [loads_of_a_thread(n) for n in (1, 255, 257)] == [0, 0, 0]
    each = {1: 1, 5: 5, 16: 16, 17: 1, 22: 11, 24: 12, 32: 16, 34: 2}
    assert {n: loads_of_a_thread(n * THREADS) for n in each} == each
    assert max(each.values()) == MOST_LOADS


def test_other_shapes_are_refused(bench):
    with pytest.raises(OpError, match="4 words in a line"):
        bench.run(OP, x=np.zeros((1, 4, 8), np.uint32))
    with pytest.raises(OpError, match="sums is"):
        bench.run(OP, x=_words(2, 4), sums=np.zeros(3, np.uint32))
