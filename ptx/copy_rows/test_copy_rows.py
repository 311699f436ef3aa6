"""Protects `copy_rows`: the rows of the pairs, no others, bit for bit; padding; one pool."""

import numpy as np
import pytest

from ptx.copy_rows.op import OP
from ptx.copy_rows_cases import (
    SHAPES,
    check_bits_are_kept,
    check_inside_one_pool,
    check_order_of_pairs,
    check_padding_alone_writes_nothing,
    inputs,
)
from ptx.op import OpError

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


def test_more_pairs_than_a_grid_holds_are_refused(kernels):
    pairs = np.full(65_536, -1)
    cell = np.zeros((1, 1), np.float32)
    for bench in kernels(OP):
        if bench.device.name == "emulator":
            with pytest.raises(OpError, match=r"no kernel fits .* N=65536"):
                bench.run(OP, source=cell, target=cell, from_rows=pairs, to_rows=pairs)
