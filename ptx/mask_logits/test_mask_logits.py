"""Protects `mask_logits`: the cells behind the tokens, and no others."""

import numpy as np
import pytest

from ptx.mask_logits.op import OP


@pytest.mark.parametrize(("n_rows", "width", "n"), [(1, 2, 1), (3, 300, 129), (2, 257, 256)])
def test_cells_behind_the_tokens(bench, kernels, n_rows, width, n):
    logits = np.random.default_rng(width).standard_normal((n_rows, width), np.float32)
    want = logits.copy()
    want[:, n:] = -np.inf
    for one in (bench, *kernels(OP)):
        assert one.run(OP, logits=logits, n=n)["logits"].tobytes() == want.tobytes()
