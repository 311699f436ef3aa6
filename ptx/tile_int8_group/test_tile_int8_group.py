"""Protects `tile_int8_group`: the order of the tiles, and that nothing is lost on the way."""

import numpy as np
import pytest

from ptx.op import OpError
from ptx.tile_int8_group.op import OP
from ptx.weight_tiles import TILE_BYTES, untile

# Tiles of rows, groups of K.
SHAPES = [(1, 1), (3, 2), (2, 5)]


def _inputs(n_tiles, n_groups):
    rng = np.random.default_rng(n_tiles)
    n_bytes = 128 * n_groups
    codes = rng.integers(0, 256, (8 * n_tiles, n_bytes), np.uint8).view(np.int8)
    scales = rng.integers(0, 2**16, (8 * n_tiles, n_groups), np.uint16)
    w = np.zeros((n_groups, n_tiles, TILE_BYTES["int8"]), np.uint8)
    return {"codes": codes, "scales": scales, "w": w}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_the_reference(bench, shape):
    bench.check(OP, **_inputs(*shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(*shape))


def test_the_way_back(bench):
    inputs = _inputs(3, 2)
    codes, scales = untile("int8", bench.run(OP, **inputs)["w"])
    assert codes.tobytes() == inputs["codes"].tobytes()
    assert scales.tobytes() == inputs["scales"].tobytes()


def test_places_by_hand(bench):
    inputs = _inputs(2, 2)
    w = bench.run(OP, **inputs)["w"]
    codes = inputs["codes"].view(np.uint8)
    # Row 11 is row 3 of tile 1; its second group begins 128 bytes on.
    assert w[1, 1, 3 * 64 + 5] == codes[11, 128 + 5]
    assert w[1, 1, 512 + 3 * 64 + 5] == codes[11, 128 + 64 + 5]
    assert w[1, 1, 1024 + 6 :][:2].view(np.uint16) == inputs["scales"][11, 1]


def test_rows_outside_whole_tiles_are_refused(bench):
    inputs = _inputs(2, 1)
    with pytest.raises(OpError, match="tile_int8_group: needs N = 8 I"):
        bench.run(OP, **{**inputs, "w": inputs["w"][:, :1]})
