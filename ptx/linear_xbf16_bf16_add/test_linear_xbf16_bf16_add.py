"""Protects `linear_xbf16_bf16_add`: tiles, their edges, walks over several, bits of rows."""

import numpy as np
import pytest

from ptx import bf16_few_cases as few
from ptx.gemm_cases import FEW, MANY, WALKS, check_refusals, check_rows, inputs, small_walk, tuned
from ptx.launch_cases import launch_twice
from ptx.linear_xbf16_bf16.ref import linear_xbf16_bf16
from ptx.linear_xbf16_bf16_add.op import OP


@pytest.mark.parametrize("shape", FEW + MANY, ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **inputs("add", *shape))


@pytest.mark.parametrize("shape", FEW + MANY[:1], ids=str)
def test_kernels(kernels, shape):
    args = inputs("add", *shape)
    for bench in kernels(OP, **args):
        bench.check(OP, **args)


@pytest.mark.parametrize("shape", MANY[1:], ids=str)
def test_kernels_of_many_tokens(kernels, shape):
    args = inputs("add", *shape)
    for bench in tuned(kernels, OP, args):
        bench.check(OP, **args)


@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_whole_numbers_are_exact_on_a_walk(kernels, monkeypatch, walk):
    tile, *shape = walk
    small_walk(monkeypatch, tile)
    args = inputs("add", *shape, whole=True)
    want = (args["h"] + linear_xbf16_bf16(args["x"], args["w"])).astype(np.float32)
    for bench in tuned(kernels, OP, args):
        assert bench.run(OP, **args)["h"].tobytes() == want.tobytes()


def test_rows_do_not_depend_on_the_others(bench, kernels):
    bench.check_rows_alone(OP, ("x", "h"), **inputs("add", 9, 16, 72))
    args = inputs("add", 60, 24, 136)
    for tuned_bench in tuned(kernels, OP, args):
        check_rows(tuned_bench, OP, args)


@pytest.mark.parametrize("shape", few.tuned_shapes("add"), ids=str)
def test_kernels_of_few_tokens(kernels, shape):
    args = few.few_inputs(OP, *shape)
    for bench in few.tuned(kernels, OP, args):
        bench.check(OP, **args)


@pytest.mark.parametrize("shape", few.WALKS["add"], ids=str)
def test_few_blocks_walk_through_parts_of_few_tokens(kernels, shape):
    op = few.few_blocks(OP)
    args = few.few_inputs(op, *shape)
    for bench in few.tuned(kernels, op, args):
        bench.check(op, **args)


def test_few_tokens_do_not_feel_the_others(kernels):
    args = few.few_inputs(OP, 16, (8,), 288)
    for bench in few.tuned(kernels, OP, args):
        few.check_rows(bench, OP, args)


def test_the_second_of_two_launches_waits_for_h(kernels):
    op, args = few.few_blocks(OP), few.few_inputs(OP, *few.WALKS["add"][-1])
    want = args["h"] + 2 * linear_xbf16_bf16(args["x"], args["w"])
    for bench in few.tuned(kernels, op, args):
        got = launch_twice(bench, op, **args)["h"]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_refusals(bench):
    check_refusals(bench, OP, "add")
