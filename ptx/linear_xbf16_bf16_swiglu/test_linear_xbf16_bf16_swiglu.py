"""Protects `linear_xbf16_bf16_swiglu`: tiles, their edges, walks, bits of rows, far gates."""

import numpy as np
import pytest

from ptx import bf16_few_cases as few
from ptx.gemm_cases import (
    FEW,
    MANY,
    PAIRED_WALKS,
    check_refusals,
    check_rows,
    inputs,
    small_walk,
    tuned,
)
from ptx.linear_xbf16_bf16_swiglu.op import OP
from ptx.linear_xbf16_bf16_swiglu.ref import linear_xbf16_bf16_swiglu
from ptx.numerics import mismatch, round_to_bf16, widen_bf16


def _check(bench, args):
    """y's width follows from no input, so it is given, and the reference asked here."""
    width = len(args["w"]) // 2
    y = np.full((len(args["x"]), width), 0x7FFF, np.uint16)
    got = bench.run(OP, **args, y=y)["y"]
    report = mismatch(widen_bf16(got), linear_xbf16_bf16_swiglu(**args), OP.tolerance)
    assert report is None, report
    return got


@pytest.mark.parametrize("shape", FEW + MANY, ids=str)
def test_against_float64(bench, shape):
    _check(bench, inputs("swiglu", *shape))


@pytest.mark.parametrize("shape", FEW + MANY[:1], ids=str)
def test_kernels(kernels, shape):
    args = inputs("swiglu", *shape)
    y = np.full((shape[0], shape[1]), 0x7FFF, np.uint16)
    for bench in kernels(OP, **args, y=y):
        _check(bench, args)
        bench.run_bare(OP, **args, y=y)


@pytest.mark.parametrize("shape", MANY[1:], ids=str)
def test_kernels_of_many_tokens(kernels, shape):
    args = inputs("swiglu", *shape)
    y = np.zeros((shape[0], shape[1]), np.uint16)
    for bench in tuned(kernels, OP, {**args, "y": y}):
        _check(bench, args)


@pytest.mark.parametrize("walk", PAIRED_WALKS, ids=str)
def test_a_walk_over_several_tiles(kernels, monkeypatch, walk):
    tile, *shape = walk
    small_walk(monkeypatch, tile)
    args = inputs("swiglu", *shape)
    for bench in tuned(kernels, OP, {**args, "y": np.zeros(shape[:2], np.uint16)}):
        _check(bench, args)


def test_far_gates_are_zero_or_themselves(bench, kernels):
    """e^-gate of -700 and of 700 is past float32 on either side; up is 1."""
    x = round_to_bf16(np.repeat([[700.0], [-700.0], [-90.0], [0.0]], 8, axis=0).repeat(8, axis=1))
    w = round_to_bf16(np.eye(8)[np.zeros(16, int)])
    w[8:] = round_to_bf16(1 / 700.0 * np.eye(8)[0])
    args = {"x": x, "w": w}
    benches = [bench, *kernels(OP, **args, y=np.zeros((32, 8), np.uint16))]
    for one in benches:
        got = widen_bf16(_check(one, args))
        assert got[0, 0] == pytest.approx(700, rel=1e-2)
        # Of the others one is a gate of -90, whose silu float32 may have or not.
        assert not got[8:16].any()
        assert not got[24:].any()


def test_rows_do_not_depend_on_the_others(kernels):
    args = inputs("swiglu", 60, 24, 136)
    args["y"] = np.zeros((60, 24), np.uint16)
    for bench in tuned(kernels, OP, args):
        check_rows(bench, OP, args)


@pytest.mark.parametrize("shape", few.tuned_shapes("swiglu"), ids=str)
def test_kernels_of_few_tokens(kernels, shape):
    args = few.few_inputs(OP, *shape)
    for bench in few.tuned(kernels, OP, args):
        bench.check(OP, **args)


@pytest.mark.parametrize("shape", few.WALKS["swiglu"], ids=str)
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
    check_refusals(bench, OP, "swiglu")
