"""Protects `pack_nvfp4_scales`: the place of every scale, the way back, refusals."""

import numpy as np
import pytest

from ptx.nvfp4 import tile_scales, untile_scales
from ptx.op import OpError
from ptx.pack_nvfp4_scales.op import OP

# N, R: one row; a line less and one more than 32 rows, than a tile; several tiles both ways.
SHAPES = [(1, 4), (31, 8), (33, 4), (127, 4), (128, 12), (129, 8), (300, 12)]


def _inputs(n_rows, n_groups):
    scales = np.random.default_rng(n_rows).integers(0, 256, (n_rows, n_groups), np.uint8)
    tiles = np.full((-(-n_rows // 128), n_groups // 4, 512), 0x7F, np.uint8)
    return {"scales": scales, "tiles": tiles}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_scale_has_its_place(bench, shape):
    given = _inputs(*shape)
    tiles = bench.run(OP, **given)["tiles"]
    want = np.zeros_like(tiles)
    for n, r in np.ndindex(shape):
        line, block = n % 32, n % 128 // 32
        want[n // 128, r // 4, 16 * line + 4 * block + r % 4] = given["scales"][n, r]
    assert (tiles == want).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_there_is_a_way_back(shape):
    scales = _inputs(*shape)["scales"]
    assert (untile_scales(tile_scales(scales), len(scales)) == scales).all()


def test_kernels(kernels):
    for shape in SHAPES:
        for bench in kernels(OP):
            bench.check(OP, **_inputs(*shape))


@pytest.mark.parametrize(
    ("tiles", "sentence"),
    [((1, 2, 512), r"I = ceil\(N / 128\), found N=129 R=8 I=1 P=2 Q=512"),
     ((2, 1, 512), "R = 4 P, found"), ((2, 2, 256), "Q = 512, found")],
)  # fmt: skip
def test_tiles_that_do_not_cover_the_scales_are_refused(bench, tiles, sentence):
    given = {**_inputs(129, 8), "tiles": np.zeros(tiles, np.uint8)}
    with pytest.raises(OpError, match=f"needs {sentence}"):
        bench.run(OP, **given)
