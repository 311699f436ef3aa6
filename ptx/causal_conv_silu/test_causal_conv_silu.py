"""Protects `causal_conv_silu`: taps, raw state, short calls, slots, bits that ignore any split."""

import math
import warnings

import numpy as np
import pytest

from ptx.causal_conv_silu.op import OP
from ptx.causal_conv_silu.ref import causal_conv_silu
from ptx.inventory import targets
from ptx.op import OpError, pick
from ptx.recurrent_cases import (
    BORDER_LENGTHS,
    N_DECODE_STEPS,
    Carried,
    cuts,
    run_batch,
    run_pieces,
)

# C, W
SHAPES = [(1, 2), (1, 4), (63, 4), (160, 4), (65, 2), (33, 7), (1024, 4)]


def _case(n_tokens, n_channels=33, n_taps=4, seed=0):
    rng = np.random.default_rng([seed, n_tokens])
    w = np.random.default_rng(n_channels).standard_normal((n_channels, n_taps))
    rows = {"u": rng.standard_normal((n_tokens, n_channels))}
    start = rng.standard_normal((n_taps - 1, n_channels))
    return Carried(OP, rows, {"w": w}, start, "y")


def _one_call(case):
    return {**case.rows, **case.fixed, "starts": np.array([0, case.n_tokens]),
            "state_in": np.array([0]), "state_out": np.array([0]), "state": case.start[None]}


def _plain(case):
    """y and the last columns of one sequence, a cell at a time."""
    columns = [*case.start, *case.rows["u"]]
    w = case.fixed["w"]
    y = np.empty(case.rows["u"].shape)
    for t, row in enumerate(y):
        for c in range(len(row)):
            total = sum(w[c, i] * columns[t + i][c] for i in range(w.shape[1]))
            row[c] = total / (1 + math.exp(-total))
    return y, np.array(columns[len(columns) - len(case.start) :])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("n_tokens", [1, 2, 33])
def test_against_float64(bench, shape, n_tokens):
    bench.check(OP, **_one_call(_case(n_tokens, *shape)))


@pytest.mark.parametrize("shape", [(1, 2), (33, 4), (5, 7)], ids=str)
@pytest.mark.parametrize("n_tokens", [1, 2, 3, 4, 17])
def test_against_a_plain_loop(bench, shape, n_tokens):
    case = _case(n_tokens, *shape)
    y, state = run_pieces(bench, case, [n_tokens])
    want_y, want_state = _plain(case)
    assert y == pytest.approx(want_y, abs=2e-6)
    assert state.tobytes() == want_state.astype(np.float32).tobytes()


@pytest.mark.parametrize(
    ("u", "columns"),
    [
        ([[4]], [2, 3, 4]),
        ([[4], [5]], [3, 4, 5]),
        ([[4], [5], [6]], [4, 5, 6]),
        ([[4], [5], [6], [-7]], [5, 6, -7]),
    ],
    ids=["1", "2", "3", "4"],
)
def test_the_state_is_the_last_raw_columns_old_ones_among_them(bench, u, columns):
    got = bench.run(
        OP, u=u, w=[[1000, 100, 10, 1]], starts=[0, len(u)], state_in=[1], state_out=[0],
        state=[[[9], [9], [9]], [[1], [2], [3]]],
    )
    assert got["state"].ravel().tolist() == [*columns, 1, 2, 3]
    # The last tap is on the current token; silu leaves numbers as large as these as they are.
    assert got["y"][0].item() == 1234


@pytest.mark.parametrize("length", BORDER_LENGTHS)
def test_no_split_changes_a_bit(bench, length):
    case = _case(length + N_DECODE_STEPS)
    want_y, want_state = run_pieces(bench, case, [1] * case.n_tokens)
    for lengths in cuts(length):
        y, state = run_pieces(bench, case, lengths)
        assert y.tobytes() == want_y.tobytes(), lengths
        assert state.tobytes() == want_state.tobytes(), lengths


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_split_changes_a_bit_at_other_shapes(bench, shape):
    case = _case(12, *shape)
    want_y, want_state = run_pieces(bench, case, [12])
    for lengths in ([1] * 12, [1, 11], [5, 7], [2, 1, 9], [3, 3, 3, 3]):
        y, state = run_pieces(bench, case, lengths)
        assert y.tobytes() == want_y.tobytes(), lengths
        assert state.tobytes() == want_state.tobytes(), lengths


def test_a_batch_changes_no_bit(bench):
    cases = [_case(n, seed=n) for n in (1, 17, 1, 3, 64, 2, 1)]
    alone = [run_pieces(bench, case, [case.n_tokens]) for case in cases]
    for seed in range(6):
        order = np.random.default_rng(seed).permutation(len(cases))[: 7 - seed]
        for i, got in zip(order, run_batch(bench, [cases[i] for i in order], seed), strict=True):
            assert [a.tobytes() for a in got] == [a.tobytes() for a in alone[i]]


def test_two_sequences_may_begin_from_one_slot(bench):
    got = bench.run(
        OP, u=[[3], [3], [4]], w=[[1, 1]], starts=[0, 1, 3], state_in=[1, 1], state_out=[0, 2],
        state=[[[7]], [[2]], [[8]]],
    )
    assert got["state"].ravel().tolist() == [3, 2, 4]
    assert got["y"][0] == got["y"][1] == pytest.approx(5 / (1 + math.exp(-5)))


@pytest.mark.parametrize("n_accepted", range(1, 6))
def test_accepted_columns_run_again_leave_the_state_of_the_straight_run(bench, n_accepted):
    case = _case(5)
    both = np.stack([case.start, np.zeros_like(case.start)])
    looked = bench.run(OP, **{**_one_call(case), "state": both, "state_out": [1]})
    got = bench.run(OP, **{**_one_call(case.head(n_accepted)), "state": looked["state"]})
    want_y, want_state = run_pieces(bench, case.head(n_accepted), [1] * n_accepted)
    assert got["state"][0].tobytes() == want_state.tobytes()
    assert got["y"].tobytes() == want_y.tobytes() == looked["y"][:n_accepted].tobytes()


def test_a_nan_stays_in_its_sequence(bench):
    cases = [_case(3, seed=seed) for seed in range(3)]
    cases[1].rows["u"][1] = np.nan
    results = run_batch(bench, cases, seed=0)
    assert [bool(np.isfinite(y).all()) for y, _ in results] == [True, False, True]


def test_far_ends_are_silent_and_right():
    u = np.array([[-3e38, -1000, -90, 0, 90, 1000, 1e38]], np.float32)
    w = np.repeat(np.array([[0, 1]], np.float32), 7, axis=0)
    index = np.array([0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = causal_conv_silu(
            u, w, np.array([0, 1]), index, index, np.zeros((1, 1, 7), np.float32)
        )
    assert y[0] == pytest.approx([0, 0, 0, 0, 90, 1000, 1e38], abs=1e-36)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": np.zeros((1, 4, 33))}, "needs one column fewer in state than taps in w, .*W=4"),
        ({"starts": [0]}, "needs one more cell in starts than sequences"),
        ({"w": np.zeros((32, 4))}, r"w is \[32, 4\], expected \[33, W\]"),
    ],
    ids=["columns", "starts", "channels"],
)
def test_shapes_that_do_not_fit_are_refused(bench, change, message):
    with pytest.raises(OpError, match=message):
        bench.run(OP, **{**_one_call(_case(2)), "y": np.zeros((2, 33)), **change})


def _fitting(kernels, *cases):
    """Benches of the kernels that take the cases in one call."""
    u = np.concatenate([case.rows["u"] for case in cases])
    slots = {"starts": np.arange(len(cases) + 1), "state_in": np.arange(len(cases))}
    state = cases[0].start[None]
    return kernels(OP, u=u, **cases[0].fixed, **slots, state_out=slots["state_in"], state=state)


@pytest.mark.parametrize("shape", [(1, 2), (129, 4), (33, 7)], ids=str)
@pytest.mark.parametrize("n_tokens", [1, 5])
def test_kernels(kernels, shape, n_tokens):
    case = _case(n_tokens, *shape)
    for bench in _fitting(kernels, case):
        bench.check(OP, **_one_call(case))


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 4])
def test_kernels_keep_the_last_raw_columns(kernels, n_tokens):
    for bench in _fitting(kernels, _case(n_tokens)):
        test_against_a_plain_loop(bench, (33, 4), n_tokens)


# Kernels that take single rows too.


@pytest.mark.parametrize("shape", [(1, 2), (33, 4)], ids=str)
def test_no_split_changes_a_bit_in_kernels(kernels, shape):
    for bench in _fitting(kernels, _case(1, *shape)):
        test_no_split_changes_a_bit_at_other_shapes(bench, shape)


def test_sequences_of_a_kernel_are_apart(kernels):
    for bench in _fitting(kernels, _case(1)):
        test_a_batch_changes_no_bit(bench)
        test_two_sequences_may_begin_from_one_slot(bench)
        test_accepted_columns_run_again_leave_the_state_of_the_straight_run(bench, 2)
        test_a_nan_stays_in_its_sequence(bench)


# The kernel for many rows, whose bits are those of the one for single rows.


@pytest.mark.parametrize("shape", [(1, 2), (130, 4), (5, 9)], ids=str)
@pytest.mark.parametrize("n_tokens", [2, 8, 9, 31, 32, 33, 65])
def test_kernels_agree_in_every_bit(kernels, shape, n_tokens):
    case = _case(n_tokens, *shape)
    runs = [run_pieces(bench, case, [n_tokens]) for bench in _fitting(kernels, case)]
    for y, state in runs:
        assert y.tobytes() == runs[-1][0].tobytes()
        assert state.tobytes() == runs[-1][1].tobytes()


def test_kernels_agree_on_a_batch_in_every_bit(kernels):
    cases = [_case(n, seed=n) for n in (1, 33, 2, 64, 3, 1)]
    runs = [run_batch(bench, cases, seed=3) for bench in _fitting(kernels, *cases)]
    for run in runs:
        for got, want in zip(run, runs[-1], strict=True):
            assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


def test_taps_past_the_rows_under_way_are_left_to_the_plain_kernel():
    known = targets()
    dims = {"T": 2, "C": 8, "W": 9, "W-1": 8, "S": 1, "S+1": 2, "P": 1}
    assert pick(OP, known["sm_80"], dims).stem == "sm_80"
    for other in ({"W": 10}, {"T": 1}, {"S": 2}):
        assert pick(OP, known["sm_80"], {**dims, **other}).stem == "portable"
