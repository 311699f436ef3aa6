"""Protects `embedding`: the right rows, bit for bit."""

import numpy as np
import pytest

from ptx.embedding.op import OP


@pytest.mark.parametrize(("n_tokens", "n_vocab", "d_model"), [(1, 1, 1), (7, 5, 3), (65, 63, 577)])
def test_rows_are_those_of_the_table(bench, n_tokens, n_vocab, d_model):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((n_vocab, d_model), np.float32)
    ids = rng.integers(0, n_vocab, n_tokens)
    bench.check(OP, ids=ids, w=w)
    got = bench.run(OP, ids=ids, w=w)["y"]
    assert [row.tobytes() for row in got] == [w[i].tobytes() for i in ids]


def test_first_and_last_id(bench):
    w = np.arange(12.0).reshape(4, 3)
    assert bench.run(OP, ids=[3, 0, 3], w=w)["y"].tolist() == [[9, 10, 11], [0, 1, 2], [9, 10, 11]]


@pytest.mark.parametrize(("n_tokens", "n_vocab", "d_model"), [(1, 1, 1), (3, 5, 129), (9, 63, 65)])
def test_kernels(kernels, n_tokens, n_vocab, d_model):
    rng = np.random.default_rng(1)
    w = rng.standard_normal((n_vocab, d_model), np.float32)
    ids = rng.integers(0, n_vocab, n_tokens)
    ids[-1] = n_vocab - 1
    for bench in kernels(OP):
        bench.check(OP, ids=ids, w=w)


def test_kernels_copy_bits_of_any_kind(kernels):
    # Payload NaNs and negative zero: what is copied is bits, not numbers.
    w = np.array([[0x7FC12345, 0x80000000, 0x00000001], [0xFF800000, 0x7F812345, 0]], np.uint32)
    for bench in kernels(OP):
        got = bench.run(OP, ids=[1, 0], w=w.view(np.float32))["y"]
        assert got.view(np.uint32).tolist() == w[::-1].tolist()
