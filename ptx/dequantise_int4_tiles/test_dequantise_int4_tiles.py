"""Protects `dequantise_int4_tiles`: the rows behind the tiles, bits, tails, refusals."""

import numpy as np
import pytest

from ptx.dequantise_int4_group128.op import OP as OF_ROWS
from ptx.dequantise_int4_tiles.op import OP
from ptx.numerics import round_to_bf16
from ptx.op import OpError
from ptx.weight_tiles import tile

# Tiles of rows, groups: one, the tuned kernel's four groups less one, and more, several tiles.
SHAPES = [(1, 1), (3, 3), (2, 9), (5, 4)]


def _inputs(n_tiles, n_groups):
    rng = np.random.default_rng(n_tiles + n_groups)
    codes = rng.integers(0, 256, (8 * n_tiles, 64 * n_groups), np.uint8)
    # Some scales are subnormal: neither kernel may flush them.
    scales = round_to_bf16(2.0 ** rng.uniform(-130, 20, (8 * n_tiles, n_groups)))
    y = np.zeros((8 * n_tiles, 128 * n_groups), np.uint16)
    return codes, scales, {"w": tile("int4", codes, scales), "y": y}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cells_are_those_of_the_rows(bench, kernels, shape):
    codes, scales, args = _inputs(*shape)
    want = bench.run(OF_ROWS, codes=codes, scales=scales, w=args["y"])["w"].tobytes()
    assert bench.run(OP, **args)["y"].tobytes() == want
    for kernel in kernels(OP):
        assert kernel.run(OP, **args)["y"].tobytes() == want
        kernel.run_bare(OP, **args)


def test_refusals(bench):
    _, _, args = _inputs(2, 2)
    with pytest.raises(OpError, match="needs N = 8 I"):
        bench.run(OP, **{**args, "y": args["y"][:8]})
    with pytest.raises(OpError, match="needs K = 128 R"):
        bench.run(OP, **{**args, "y": args["y"][:, :128]})
    with pytest.raises(OpError, match="needs Q = 528"):
        bench.run(OP, **{**args, "w": args["w"][..., 1:]})
