"""Protects `copy_rows_bf16`: the rows of the pairs, no others, bit for bit; padding; one pool."""

import pytest

from ptx.copy_rows_bf16.op import OP
from ptx.copy_rows_cases import (
    SHAPES,
    check_bits_are_kept,
    check_inside_one_pool,
    check_order_of_pairs,
    check_padding_alone_writes_nothing,
    inputs,
)

CHECKS = [
    check_bits_are_kept,
    check_inside_one_pool,
    check_order_of_pairs,
    check_padding_alone_writes_nothing,
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_those_of_the_source(bench, shape):
    args = inputs(OP, *shape)
    want = args["target"].copy()
    for from_row, to_row in zip(args["from_rows"], args["to_rows"], strict=True):
        if from_row >= 0:
            want[to_row] = args["source"][from_row]
    assert bench.run(OP, **args)["target"].tobytes() == want.tobytes()


@pytest.mark.parametrize("check", CHECKS)
def test_what_must_hold(bench, check):
    check(bench, OP)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        bench.check(OP, **inputs(OP, *shape))


@pytest.mark.parametrize("check", CHECKS)
def test_what_must_hold_in_kernels(kernels, check):
    for bench in kernels(OP):
        check(bench, OP)
