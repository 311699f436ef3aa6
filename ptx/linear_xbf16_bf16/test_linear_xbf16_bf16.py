"""Protects `linear_xbf16_bf16`: tiles, their edges, walks over several, bits of rows, refusals."""

import numpy as np
import pytest

from ptx import bf16_few_cases as few
from ptx import gemm_kernel
from ptx.gemm_cases import FEW, MANY, WALKS, check_refusals, check_rows, inputs, small_walk, tuned
from ptx.linear_xbf16_bf16.op import OP
from ptx.linear_xbf16_bf16.ref import linear_xbf16_bf16


@pytest.mark.parametrize("shape", FEW + MANY, ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **inputs("none", *shape))


@pytest.mark.parametrize("shape", FEW + MANY[:1], ids=str)
def test_kernels(kernels, shape):
    args = inputs("none", *shape)
    for bench in kernels(OP, **args):
        bench.check(OP, **args)


@pytest.mark.parametrize("shape", MANY[1:], ids=str)
def test_kernels_of_many_tokens(kernels, shape):
    args = inputs("none", *shape)
    for bench in tuned(kernels, OP, args):
        bench.check(OP, **args)


@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_whole_numbers_are_exact_on_a_walk(kernels, monkeypatch, walk):
    tile, *shape = walk
    small_walk(monkeypatch, tile)
    args = inputs("none", *shape, whole=True)
    want = linear_xbf16_bf16(**args).astype(np.float32)
    for bench in tuned(kernels, OP, args):
        assert bench.run(OP, **args)["y"].tobytes() == want.tobytes()


def test_rows_do_not_depend_on_the_others(bench, kernels):
    bench.check_rows_alone(OP, ("x",), **inputs("none", 9, 16, 72))
    args = inputs("none", 60, 24, 136)
    for tuned_bench in tuned(kernels, OP, args):
        check_rows(tuned_bench, OP, args)


@pytest.mark.parametrize("epilogue", gemm_kernel.OUTPUTS)
def test_every_division_fits_a_card(epilogue):
    """Sums in 240 registers, stages in shared memory, boxes in a map; few texts for all T."""
    for width in (8, 1000, 5120, 6144, 14336, 16384, 17408, 34816, 248320):
        texts = set()
        for n_tokens in (17, 128, 129, 512, 513, 2048, 8192):
            dims = {"T": n_tokens, "N": 2 * width if epilogue == "swiglu" else width, "F": width,
                    "K": 5120}
            tile = gemm_kernel.tiling(epilogue, dims)
            assert tile.tile_t * tile.tile_n // 256 <= 192
            assert tile.tile_n <= 256
            assert tile.stages >= 4
            kernel = gemm_kernel.kernels("toy", epilogue)[0]
            launch = kernel.launch(dims)
            assert launch.shared_bytes <= 227 << 10
            assert launch.grid <= gemm_kernel.BLOCKS
            assert all(wish.box[0] <= 256 for wish in kernel.maps(dims))
            texts.add(tuple(kernel.constants(dims).values()))
        assert len(texts) <= len(gemm_kernel.CHUNKS)


@pytest.mark.parametrize("shape", few.tuned_shapes("none"), ids=str)
def test_kernels_of_few_tokens(kernels, shape):
    args = few.few_inputs(OP, *shape)
    for bench in few.tuned(kernels, OP, args):
        bench.check(OP, **args)


@pytest.mark.parametrize("shape", few.WALKS["none"], ids=str)
def test_few_blocks_walk_through_parts_of_few_tokens(kernels, shape):
    op = few.few_blocks(OP)
    args = few.few_inputs(op, *shape)
    for bench in few.tuned(kernels, op, args):
        bench.check(op, **args)


def test_few_tokens_do_not_feel_the_others(kernels):
    args = few.few_inputs(OP, 16, (8,), 288)
    for bench in few.tuned(kernels, OP, args):
        few.check_rows(bench, OP, args)


def test_refusals(bench):
    check_refusals(bench, OP, "none")
