"""Protects `embedding_bf16`: the right rows, widened bit for bit."""

import numpy as np
import pytest

from ptx.embedding_bf16.op import OP


@pytest.mark.parametrize(("n_tokens", "n_vocab", "d_model"), [(1, 1, 1), (3, 5, 129), (9, 63, 65)])
def test_rows_are_those_of_the_table(bench, kernels, n_tokens, n_vocab, d_model):
    rng = np.random.default_rng(n_vocab)
    # Any bits: NaN with payloads, infinities and subnormals are copied like the rest.
    w = rng.integers(0, 1 << 16, (n_vocab, d_model)).astype(np.uint16)
    ids = rng.integers(0, n_vocab, n_tokens)
    ids[-1] = n_vocab - 1
    want = (w[ids].astype(np.uint32) << 16).tobytes()
    for one in (bench, *kernels(OP)):
        assert one.run(OP, ids=ids, w=w)["y"].tobytes() == want


def test_guards(kernels):
    w = np.arange(12, dtype=np.uint16).reshape(4, 3)
    for kernel in kernels(OP):
        kernel.check(OP, ids=[3, 0, 3], w=w)
