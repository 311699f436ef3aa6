"""Protects `repack_tiles`: the place of every byte, tiles of any form, refusals."""

import numpy as np
import pytest

from ptx.op import OpError
from ptx.repack_tiles.op import OP

# I, J, P, Q: one byte; one tile; single rows, columns and bytes; a tile of 256 bytes, of one more
# and of two rounds; a piece of the real form.
SHAPES = [
    (1, 1, 1, 1), (1, 1, 7, 5), (5, 1, 1, 3), (1, 6, 3, 1), (4, 3, 1, 1), (2, 3, 16, 16),
    (3, 2, 257, 1), (2, 2, 1, 513), (3, 5, 64, 16),
]


def _inputs(n_down, n_across, n_rows, n_bytes):
    rng = np.random.default_rng(n_rows)
    x = rng.integers(0, 256, (n_down * n_rows, n_across * n_bytes), np.uint8)
    return {"x": x, "y": np.zeros((n_down, n_across, n_rows, n_bytes), np.uint8)}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_byte_has_its_place(bench, shape):
    inputs = _inputs(*shape)
    n_rows, n_bytes = shape[2:]
    y = bench.run(OP, **inputs)["y"]
    for i, j in np.ndindex(shape[:2]):
        tile = inputs["x"][i * n_rows : (i + 1) * n_rows, j * n_bytes : (j + 1) * n_bytes]
        assert y[i, j].tolist() == tile.tolist()


def test_tiles_by_hand(bench):
    x = np.arange(24).reshape(4, 6)
    y = bench.run(OP, x=x, y=np.zeros((2, 2, 2, 3)))["y"]
    assert y.ravel().tolist() == [
        0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11, 12, 13, 14, 18, 19, 20, 15, 16, 17, 21, 22, 23,
    ]


def test_tiles_by_hand_in_kernels(kernels):
    for bench in kernels(OP):
        test_tiles_by_hand(bench)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(*shape))


def test_rows_of_tiles_do_not_depend_on_the_others(kernels):
    inputs = _inputs(3, 5, 8, 16)
    for bench in kernels(OP):
        whole = bench.run(OP, **inputs)["y"]
        for i in range(3):
            part = {"x": inputs["x"][8 * i : 8 * i + 8], "y": inputs["y"][:1]}
            got = bench.run(OP, n_guard=2 * i + 1, **part)["y"]
            assert got.tobytes() == whole[i].tobytes()


@pytest.mark.parametrize(
    ("tiles", "sentence"), [((2, 2, 3, 3), "N = I P"), ((2, 3, 2, 3), "B = J Q")]
)
def test_tiles_that_do_not_cover_x_are_refused(bench, tiles, sentence):
    with pytest.raises(OpError, match=f"needs {sentence}"):
        bench.run(OP, x=np.zeros((4, 6)), y=np.zeros(tiles))
