"""Protects `unpack_tiles`: the place of every byte, and that it undoes `repack_tiles`."""

import numpy as np
import pytest

from ptx.op import OpError
from ptx.repack_tiles.op import OP as REPACK
from ptx.unpack_tiles.op import OP

# I, J, P, Q: one byte; one tile; single rows, columns and bytes; a tile of 256 bytes, of one more
# and of two rounds; a piece of the real form.
SHAPES = [
    (1, 1, 1, 1), (1, 1, 7, 5), (5, 1, 1, 3), (1, 6, 3, 1), (4, 3, 1, 1), (2, 3, 16, 16),
    (3, 2, 257, 1), (2, 2, 1, 513), (3, 5, 64, 16),
]


def _inputs(n_down, n_across, n_rows, n_bytes):
    rng = np.random.default_rng(n_rows)
    x = rng.integers(0, 256, (n_down, n_across, n_rows, n_bytes), np.uint8)
    return {"x": x, "y": np.zeros((n_down * n_rows, n_across * n_bytes), np.uint8)}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_byte_has_its_place(bench, shape):
    inputs = _inputs(*shape)
    n_rows, n_bytes = shape[2:]
    y = bench.run(OP, **inputs)["y"]
    for i, j in np.ndindex(shape[:2]):
        tile = y[i * n_rows : (i + 1) * n_rows, j * n_bytes : (j + 1) * n_bytes]
        assert tile.tolist() == inputs["x"][i, j].tolist()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(*shape))


def _check_undoes_repack(repack_bench, bench):
    rows = np.random.default_rng(1).integers(0, 256, (48, 60), np.uint8)
    tiles = repack_bench.run(REPACK, x=rows, y=np.zeros((3, 5, 16, 12)))["y"]
    got = bench.run(OP, x=tiles, y=np.zeros_like(rows))["y"]
    assert got.tobytes() == rows.tobytes()


def test_undoes_repack(bench):
    _check_undoes_repack(bench, bench)


def test_undoes_repack_in_kernels(kernels):
    for repack_bench in kernels(REPACK):
        for bench in kernels(OP):
            _check_undoes_repack(repack_bench, bench)


@pytest.mark.parametrize(
    ("tiles", "sentence"), [((2, 2, 3, 3), "N = I P"), ((2, 3, 2, 3), "B = J Q")]
)
def test_tiles_that_do_not_cover_y_are_refused(bench, tiles, sentence):
    with pytest.raises(OpError, match=f"needs {sentence}"):
        bench.run(OP, x=np.zeros(tiles), y=np.zeros((4, 6)))
