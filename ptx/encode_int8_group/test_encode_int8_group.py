"""Protects `encode_int8_group`: codes, scales, and which groups are refused, to the bit."""

import numpy as np
import pytest

from ptx.encode_cases import (
    SHAPES,
    all_cases,
    arguments,
    one_group,
    plain_loop,
    random_weights,
    ties_of_codes,
    ties_of_scales,
)
from ptx.encode_int8_group.op import OP
from ptx.numerics import GROUP, round_to_bf16, widen_bf16
from ptx.op import OpError

CASES = all_cases(127)


def _run(bench, w):
    return bench.run(OP, **arguments(OP, w))


@pytest.mark.parametrize("name", CASES)
def test_against_a_plain_loop(bench, name):
    w = CASES[name][:40]
    q, scales, bad = plain_loop(w, 127)
    got = _run(bench, w)
    assert (got["codes"] == q).all()
    assert (got["scales"] == scales).all()
    assert got["bad"].tolist() == bad


@pytest.mark.parametrize(("n_rows", "width"), SHAPES)
def test_kernels(kernels, n_rows, width):
    for bench in kernels(OP):
        bench.check(OP, **arguments(OP, random_weights(n_rows, width)))


# Of numpy, about the signalling NaN among the edges.
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("name", CASES)
def test_kernels_at_every_edge(kernels, name):
    for bench in kernels(OP):
        bench.check(OP, **arguments(OP, CASES[name]))


def test_rows_do_not_depend_on_the_others(bench):
    given = arguments(OP, CASES["rows of edges"])
    bench.check_rows_alone(OP, tuple(given), **given)


def test_kernels_rows_alone(kernels):
    given = arguments(OP, CASES["rows of edges"][:6])
    for bench in kernels(OP):
        bench.check_rows_alone(OP, tuple(given), **given)


def test_codes_by_hand(bench):
    got = _run(bench, one_group([127, -127, 0.5, 1.5, 2.5, -0.5, -2.5, 126.5, -126.49], -127))
    assert got["codes"][0, :9].tolist() == [127, -127, 0, 2, 2, 0, -2, 126, -126]
    assert got["codes"][0, 9:].tolist() == [0] * 118 + [-127]
    assert got["scales"].tolist() == [[0x3F80]]
    assert got["bad"].tolist() == [-1]


def test_scales_by_hand(bench):
    # 1 / 127 = 2^-7 (1 + 1/127), and the nearest fraction of eight bits is 1 + 1/128.
    got = _run(bench, np.concatenate([one_group([], a) for a in (1, -63.5, 0)]))
    assert got["scales"].tolist() == [[0x3C01], [0x3F00], [0x3F80]]
    assert got["codes"][:, -1].tolist() == [127, -127, 0]


def test_the_lowest_bad_group_is_named(bench):
    # Of one warp (1, 9, 17), of several, the first, the last, and all of them.
    rows = [[17, 9, 1], [12, 3, 5], [0, 19], [19], [], range(20)]
    w = np.ones((6, 20, GROUP), np.float32)
    for row, groups in enumerate(rows):
        w[row, groups, 77] = np.inf
    got = _run(bench, w.reshape(6, -1))
    assert got["bad"].tolist() == [1, 3, 0, 19, -1, 0]
    refused = np.isinf(w).any(axis=2)
    assert (got["scales"] == np.where(refused, 0, 0x3C01)).all()
    assert (got["codes"].reshape(w.shape) == np.where(refused, 0, 127)[..., None]).all()


def test_by_hand_in_kernels(kernels):
    for bench in kernels(OP):
        test_codes_by_hand(bench)
        test_scales_by_hand(bench)
        test_the_lowest_bad_group_is_named(bench)


def test_the_ties_tell_division_from_a_reciprocal():
    """What the cases are for: times 1 / 127 or 1 / scale, some of their bits come out otherwise."""
    a = np.abs(ties_of_scales(127)).max(axis=1)
    by_reciprocal = round_to_bf16(a * (np.float32(1) / np.float32(127)))
    assert (round_to_bf16(a / np.float32(127)) != by_reciprocal).any()
    w = ties_of_codes(127)
    s = widen_bf16(round_to_bf16(np.abs(w).max(axis=1) / np.float32(127)))[:, None]
    assert (np.rint(w / s) != np.rint(w * (np.float32(1) / s))).sum() > 900


def test_shapes_that_disagree_are_refused(bench):
    given = arguments(OP, random_weights(2, 256))
    with pytest.raises(OpError, match="needs K = 128 R, found"):
        bench.run(OP, **{**given, "scales": given["scales"][:, :1]})
