"""Protects `untile_int4_group128`: the order of the tiles, and that nothing is lost on the way."""

import numpy as np
import pytest

from ptx.op import OpError
from ptx.untile_int4_group128.op import OP
from ptx.weight_tiles import tile

# Tiles of rows, groups of K.
SHAPES = [(1, 1), (3, 2), (2, 5)]


def _inputs(n_tiles, n_groups):
    rng = np.random.default_rng(n_tiles)
    n_bytes = 64 * n_groups
    codes = rng.integers(0, 256, (8 * n_tiles, n_bytes), np.uint8)
    scales = rng.integers(0, 2**16, (8 * n_tiles, n_groups), np.uint16)
    return {"codes": codes, "scales": scales, "w": tile("int4", codes, scales)}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_the_reference(bench, shape):
    bench.check(OP, **_inputs(*shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(*shape))


def test_the_way_back(bench):
    inputs = _inputs(3, 2)
    got = bench.run(OP, **inputs)
    assert got["codes"].tobytes() == inputs["codes"].tobytes()
    assert got["scales"].tobytes() == inputs["scales"].tobytes()


def test_rows_outside_whole_tiles_are_refused(bench):
    inputs = _inputs(2, 1)
    with pytest.raises(OpError, match="untile_int4_group128: needs N = 8 I"):
        bench.run(OP, **{**inputs, "w": inputs["w"][:, :1]})
