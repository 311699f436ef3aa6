"""Protects `causal_attention`: the formula, what a row may see, and bits that ignore any cut."""

import numpy as np
import pytest

from ptx.causal_attention.op import OP
from ptx.causal_attention.ref import causal_attention
from ptx.causal_attention_cases import case, cut, plain
from ptx.numerics import round_to_bf16, widen_bf16
from ptx.op import OpError

SHAPES = [
    # sequences of (first position, rows), H, G, E, B
    (((0, 1),), 4, 1, 2, 1),
    (((3, 2), (0, 5), (16, 1)), 4, 2, 10, 4),
    (((30, 7), (0, 40)), 9, 3, 64, 16),
    (((0, 3), (15, 3)), 6, 1, 7, 8),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **case(*shape))


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_reference_against_a_plain_loop(shape):
    args = case(*shape)
    got = causal_attention(**args)
    assert got == pytest.approx(plain(args), rel=1e-12, abs=1e-12)


def test_the_first_row_of_all_takes_its_own_value(bench):
    args = case(((0, 3),), 4, 2, 8, 4)
    y = bench.run(OP, **args)["y"]
    value = args["v_pages"][args["pages"][0, 0], :, 0]
    assert y[0].tobytes() == np.repeat(value, 2, axis=0).tobytes()


def test_a_later_cell_is_not_seen(bench):
    args = case(((5, 6),), 2, 1, 8, 4)
    before = bench.run(OP, **args)["y"]
    page, at = args["pages"][0, 8 // 4], 8 % 4
    args["k_pages"][page, :, at] ^= 0x8000
    args["v_pages"][page, :, at] ^= 0x8000
    after = bench.run(OP, **args)["y"]
    assert [(a != b).any() for a, b in zip(before, after, strict=True)] == [False] * 3 + [True] * 3


def test_large_scores_do_not_overflow(bench):
    args = case(((0, 40),), 1, 1, 64)
    # On the grid of bf16, for here a rounded q would move the scores by units.
    args["q"] = widen_bf16(round_to_bf16(args["q"] * 1e4)).astype(np.float64)
    bench.check(OP, **args)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts": [0, 1, 2]}, "needs one more cell in starts than sequences, .*S=1"),
        ({"q": np.zeros((2, 5, 8))}, "needs G divides H, .*H=5"),
        ({"first": [0, 0]}, r"first is \[2\], expected \[1\]"),
        ({"q": np.zeros((2, 4, 16))}, r"k_pages is .*, expected"),
    ],
    ids=["starts", "heads", "first", "width"],
)
def test_shapes_that_do_not_fit_are_refused(bench, change, message):
    args = {**case(((0, 2),), 4, 2, 8, 4), **change}
    with pytest.raises(OpError, match=message):
        bench.run(OP, **{**args, "y": np.zeros(np.shape(args["q"]), np.uint16)})


# Kernels


# Past a tile of rows and one of keys, tails of both, a sequence of few rows.
TAILS = (((60, 70), (3, 2)), 2, 2, 64, 16)
KERNEL_SHAPES = [SHAPES[1], TAILS, (((120, 15),), 1, 1, 128, 16), (((30, 66),), 1, 1, 256, 16),
    # Later tiles of few rows, where the wait for V is a real one.
    (((300, 9),), 1, 1, 256, 16)]


@pytest.mark.parametrize("shape", KERNEL_SHAPES, ids=str)
def test_kernels(kernels, shape):
    args = case(*shape)
    for bench in kernels(OP, **args):
        bench.check(OP, **args)


def test_special_cases_in_kernels(kernels):
    for bench in kernels(OP):
        test_large_scores_do_not_overflow(bench)


def test_no_cut_into_calls_changes_a_bit_in_kernels(kernels):
    args = case(*TAILS)
    for bench in kernels(OP, **args):
        whole = bench.run(OP, **args)["y"]
        got = bench.run(OP, **cut(args, 0, 13, 69))["y"]
        assert got.tobytes() == whole[13:69].tobytes()
