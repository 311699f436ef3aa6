"""Protects `encode_int4_group128`: codes, scales, and which groups are refused, to the bit."""

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
from ptx.encode_int4_group128.op import OP
from ptx.numerics import GROUP, round_to_bf16, unpack_int4, widen_bf16
from ptx.op import OpError

CASES = all_cases(7)
# a, and the bits of bf16(a / 7).
SCALES = [(7, 0x3F80), (3, 0x3EDB), (1, 0x3E12), (0.38, 0x3D5E), (0.1, 0x3C6A), (0.001, 0x3916),
          (0, 0x3F80)]  # fmt: skip


def _run(bench, w):
    return bench.run(OP, **arguments(OP, w))


@pytest.mark.parametrize("name", CASES)
def test_against_a_plain_loop(bench, name):
    w = CASES[name][:40]
    q, scales, bad = plain_loop(w, 7)
    got = _run(bench, w)
    assert (unpack_int4(got["codes"]) == q).all()
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


def test_packing_by_hand(bench):
    got = _run(bench, one_group([1, -1, 7, -7, 0, 3, -4, 2], 7))
    assert got["codes"][0, :4].tobytes().hex(" ").upper() == "F1 97 30 2C"
    assert got["codes"][0, 4:].tolist() == [0] * 59 + [0x70]
    assert got["scales"].tolist() == [[0x3F80]]
    assert got["bad"].tolist() == [-1]


def test_codes_by_hand(bench):
    got = _run(bench, one_group([0.5, 1.5, 2.5, -0.5, -2.5, 6.5, -6.5, 3.49], 7))
    assert unpack_int4(got["codes"])[0, :8].tolist() == [0, 2, 2, 0, -2, 6, -6, 3]
    # The scale of 1 / 7 is rounded down, so that half of 1 / 7 and 1 / 14 lie above a middle.
    got = _run(bench, one_group([1, -1, 0.5, 1 / 14], 1))
    assert unpack_int4(got["codes"])[0, :4].tolist() == [7, -7, 4, 1]


def test_scales_by_hand(bench):
    w = np.concatenate([one_group([], sign * a) for a, _ in SCALES for sign in (1, -1)])
    got = _run(bench, w)
    assert got["scales"][:, 0].tolist() == [bits for _, bits in SCALES for _ in range(2)]
    assert unpack_int4(got["codes"])[:, -1].tolist() == [7, -7] * 6 + [0, 0]


def test_the_lowest_bad_group_is_named(bench):
    # Of one warp (1, 9, 17), of several, the first, the last, and all of them.
    rows = [[17, 9, 1], [12, 3, 5], [0, 19], [19], [], range(20)]
    w = np.ones((6, 20, GROUP), np.float32)
    for row, groups in enumerate(rows):
        w[row, groups, 77] = np.nan
    got = _run(bench, w.reshape(6, -1))
    assert got["bad"].tolist() == [1, 3, 0, 19, -1, 0]
    refused = np.isnan(w).any(axis=2)
    assert (got["scales"] == np.where(refused, 0, 0x3E12)).all()
    # 1 over bf16(1 / 7) is 7.01.
    assert (got["codes"].reshape(6, 20, 64) == np.where(refused, 0, 0x77)[..., None]).all()


def test_by_hand_in_kernels(kernels):
    for bench in kernels(OP):
        test_packing_by_hand(bench)
        test_codes_by_hand(bench)
        test_scales_by_hand(bench)
        test_the_lowest_bad_group_is_named(bench)


def test_the_ties_tell_division_from_a_reciprocal():
    """What the cases are for: times 1 / 7 or 1 / scale, some of their bits come out otherwise."""
    a = np.abs(ties_of_scales(7)).max(axis=1)
    by_reciprocal = round_to_bf16(a * (np.float32(1) / np.float32(7)))
    assert (round_to_bf16(a / np.float32(7)) != by_reciprocal).sum() > 50
    w = ties_of_codes(7)
    s = widen_bf16(round_to_bf16(np.abs(w).max(axis=1) / np.float32(7)))[:, None]
    assert (np.rint(w / s) != np.rint(w * (np.float32(1) / s))).sum() > 250


def test_shapes_that_disagree_are_refused(bench):
    given = arguments(OP, random_weights(2, 256))
    for name, cut, needs in (("codes", 127, "K = 2 J"), ("scales", 1, "K = 128 R")):
        with pytest.raises(OpError, match=f"needs {needs}, found"):
            bench.run(OP, **{**given, name: given[name][:, :cut]})
