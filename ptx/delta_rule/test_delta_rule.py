"""Protects `delta_rule`: the formula, its order, heads, slots, and bits that ignore any split."""

import math

import numpy as np
import pytest

from ptx.delta_rule.op import OP
from ptx.delta_rule.ref import delta_rule
from ptx.op import OpError
from ptx.recurrent_cases import (
    BORDER_LENGTHS,
    N_DECODE_STEPS,
    Carried,
    cuts,
    delta_inputs,
    plain_delta_rule,
    run_batch,
    run_pieces,
)

TINY = (2, 6, 16, 16)
# Nk, Nv, Dk, Dv
HEADS = [(1, 1, 1, 1), (3, 3, 5, 7), (2, 4, 7, 3), TINY, (4, 12, 16, 16), (2, 6, 128, 128)]


def _case(n_tokens, heads=TINY, seed=0):
    rows, start = delta_inputs(n_tokens, *heads, seed=seed)
    return Carried(OP, rows, {}, start, "o")


def _one_call(case, n_slots=1):
    """Arguments of one call with the sequence in slot 0, in float32 values."""
    state = np.zeros((n_slots, *case.start.shape))
    state[0] = case.start
    args = {**case.rows, "state": state}
    args = {name: array.astype(np.float32) for name, array in args.items()}
    return {**args, "starts": np.array([0, case.n_tokens]), "state_in": np.array([0]),
            "state_out": np.array([0])}


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_against_float64(bench, heads):
    bench.check(OP, **_one_call(_case(33, heads)))


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_reference_against_a_plain_loop(heads):
    case = _case(19, heads)
    args = _one_call(case)
    wide = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in args.items()}
    want_o, want_state = plain_delta_rule(
        *(args[name] for name in ("qkv", "g", "beta")), args["state"][0], heads[0]
    )
    o = delta_rule(**wide)
    assert o == pytest.approx(want_o, rel=1e-11, abs=1e-13)
    assert wide["state"][0] == pytest.approx(want_state, rel=1e-11, abs=1e-13)


def test_float32_does_not_drift_over_a_long_sequence(bench):
    case = _case(2000)
    case.rows["g"] *= 0.01
    bench.check(OP, **_one_call(case))


def test_one_step_by_hand(bench):
    # Long q and k have unit length after the norm. The state 2 decays to 1; the error 3 - 1 is
    # written by half: 2, and that is read.
    got = bench.run(
        OP, qkv=[[1e4, 1e4, 3]], g=[[math.log(0.5)]], beta=[[0.5]], starts=[0, 1], state_in=[0],
        state_out=[0], state=[[[[2]]]],
    )
    assert got["state"].item() == pytest.approx(2, rel=1e-6)
    assert got["o"].item() == pytest.approx(2, rel=1e-6)


def test_the_constant_is_added_to_the_sum_of_squares(bench):
    # Four cells of 1e-3: the sum of squares is 4e-6, with the constant 5e-6.
    got = bench.run(
        OP, qkv=[[*[1e-3] * 8, 1]], g=[[0]], beta=[[1]], starts=[0, 1], state_in=[0],
        state_out=[0], state=np.zeros((1, 1, 1, 4)),
    )
    k = 1e-3 / math.sqrt(5e-6)
    assert got["state"].ravel() == pytest.approx([k] * 4, rel=1e-6)
    # k is not scaled by 1 / sqrt(Dk), q is.
    assert got["o"].item() == pytest.approx(4 * k * k / 2, rel=1e-6)


def test_neighbouring_value_heads_share_a_key_head(bench):
    case = _case(5, (2, 6, 4, 3))
    args = _one_call(case)
    before = bench.run(OP, **args)
    args["qkv"][:, :4] += 1
    args["qkv"][:, 8:12] += 1
    after = bench.run(OP, **args)
    changed = [(after["o"][:, j] != before["o"][:, j]).any() for j in range(6)]
    assert changed == [True, True, True, False, False, False]


def test_without_writes_the_state_only_decays(bench):
    case = _case(9)
    case.rows["beta"][:] = 0
    got = bench.run(OP, **_one_call(case))["state"][0]
    want = np.exp(case.rows["g"].sum(axis=0))[:, None, None] * case.start
    assert got == pytest.approx(want, rel=1e-5, abs=1e-9)


def test_a_repeated_key_reads_back_the_last_value(bench):
    case = _case(7)
    n_keys = 2 * 2 * 16
    case.rows["qkv"][:, :n_keys] = 0
    case.rows["qkv"][:, 3:n_keys:16] = 1e4
    case.rows["g"][:] = 0
    case.rows["beta"][:] = 1
    got = bench.run(OP, **_one_call(case))["o"]
    values = case.rows["qkv"][:, n_keys:].reshape(7, 6, 16)
    assert got * math.sqrt(16) == pytest.approx(values, rel=1e-5, abs=1e-5)


def test_an_infinite_decay_forgets(bench):
    case = _case(4)
    case.rows["g"][2] = -np.inf
    got = bench.run(OP, **_one_call(case))
    tail = {name: array[2:] for name, array in case.rows.items()}
    tail["g"][0] = 0
    zero = Carried(OP, tail, {}, np.zeros_like(case.start), "o")
    assert got["o"][2:].tobytes() == bench.run(OP, **_one_call(zero))["o"].tobytes()


# Splits, batches, slots


@pytest.mark.parametrize("length", BORDER_LENGTHS)
def test_no_split_changes_a_bit(bench, length):
    case = _case(length + N_DECODE_STEPS)
    want_o, want_state = run_pieces(bench, case, [1] * case.n_tokens)
    for lengths in cuts(length):
        o, state = run_pieces(bench, case, lengths)
        assert o.tobytes() == want_o.tobytes(), lengths
        assert state.tobytes() == want_state.tobytes(), lengths


@pytest.mark.parametrize("heads", [*HEADS, (1, 6, 1, 9), (1, 2, 33, 1)], ids=str)
def test_no_split_changes_a_bit_at_other_heads(bench, heads):
    case = _case(12, heads)
    want_o, want_state = run_pieces(bench, case, [12])
    for lengths in ([1] * 12, [1, 11], [5, 7], [2, 1, 9], [3, 3, 3, 3]):
        o, state = run_pieces(bench, case, lengths)
        assert o.tobytes() == want_o.tobytes(), lengths
        assert state.tobytes() == want_state.tobytes(), lengths


def test_a_batch_changes_no_bit(bench):
    cases = [_case(n, seed=n) for n in (1, 17, 1, 3, 64, 2, 1)]
    alone = [run_pieces(bench, case, [case.n_tokens]) for case in cases]
    for seed in range(6):
        order = np.random.default_rng(seed).permutation(len(cases))[: 7 - seed]
        for i, got in zip(order, run_batch(bench, [cases[i] for i in order], seed), strict=True):
            assert [a.tobytes() for a in got] == [a.tobytes() for a in alone[i]]


def test_two_sequences_may_begin_from_one_slot(bench):
    case = _case(6)
    args = _one_call(case, n_slots=4)
    got = bench.run(OP, **{**args, "starts": [0, 2, 6], "state_in": [0, 0], "state_out": [3, 1]})
    tail = Carried(OP, {n: a[2:] for n, a in case.rows.items()}, {}, case.start, "o")
    for part, slot, rows in ((case.head(2), 3, slice(0, 2)), (tail, 1, slice(2, 6))):
        want_o, want_state = run_pieces(bench, part, [part.n_tokens])
        assert got["o"][rows].tobytes() == want_o.tobytes()
        assert got["state"][slot].tobytes() == want_state.tobytes()
    assert got["state"][0].tobytes() == args["state"][0].tobytes()


@pytest.mark.parametrize("n_accepted", range(1, 6))
def test_accepted_columns_run_again_leave_the_state_of_the_straight_run(bench, n_accepted):
    case = _case(5)
    args = _one_call(case, n_slots=2)
    looked = bench.run(OP, **{**args, "state_out": [1]})
    assert looked["state"][0].tobytes() == args["state"][0].tobytes()
    accepted = {**args, **{name: args[name][:n_accepted] for name in case.rows}}
    got = bench.run(OP, **{**accepted, "state": looked["state"], "starts": [0, n_accepted]})
    want_o, want_state = run_pieces(bench, case.head(n_accepted), [1] * n_accepted)
    assert got["state"][0].tobytes() == want_state.tobytes()
    assert got["o"].tobytes() == want_o.tobytes() == looked["o"][:n_accepted].tobytes()


def test_a_nan_stays_in_its_sequence(bench):
    cases = [_case(3, seed=seed) for seed in range(3)]
    cases[1].rows["qkv"][1] = np.nan
    results = run_batch(bench, cases, seed=0)
    assert [bool(np.isfinite(state).all()) for _, state in results] == [True, False, True]
    assert np.isfinite(results[1][0][:1]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv": np.zeros((2, 161))}, "needs C = 2 Nk Dk . Nv Dv with Nk dividing Nv, .*C=161"),
        ({"qkv": np.zeros((2, 96))}, "needs C = 2 Nk Dk"),
        ({"qkv": np.zeros((2, 96 + 32 * 4))}, "needs C = 2 Nk Dk"),
        ({"starts": [0, 1, 2]}, "needs one more cell in starts than sequences, .*S=1"),
        ({"state_out": [0, 0]}, r"state_out is \[2\], expected \[1\]"),
        ({"g": np.zeros((2, 5))}, r"state is \[1, 6, 16, 16\], expected|beta is \[2, 6\]"),
    ],
    ids=["odd", "no-keys", "not-dividing", "starts", "slots", "g"],
)
def test_shapes_that_do_not_fit_are_refused(bench, change, message):
    with pytest.raises(OpError, match=message):
        bench.run(OP, **{**_one_call(_case(2)), "o": np.zeros((2, 6, 16)), **change})


# Kernels


@pytest.mark.parametrize(
    ("n_tokens", "heads"),
    [(1, (1, 1, 1, 1)), (5, (3, 3, 5, 7)), (4, (2, 4, 7, 3)), (17, TINY), (2, (1, 3, 65, 9)),
     (3, (1, 2, 128, 128))],
    ids=str,
)
def test_kernels(kernels, n_tokens, heads):
    for bench in kernels(OP):
        bench.check(OP, **_one_call(_case(n_tokens, heads)))


def test_kernels_do_what_is_said_by_hand(kernels):
    for bench in kernels(OP):
        test_one_step_by_hand(bench)
        test_the_constant_is_added_to_the_sum_of_squares(bench)
        test_neighbouring_value_heads_share_a_key_head(bench)
        test_an_infinite_decay_forgets(bench)


@pytest.mark.parametrize("heads", [(2, 4, 7, 3), (1, 2, 33, 1)], ids=str)
def test_no_split_changes_a_bit_in_kernels(kernels, heads):
    for bench in kernels(OP):
        test_no_split_changes_a_bit_at_other_heads(bench, heads)


def test_sequences_of_a_kernel_are_apart(kernels):
    for bench in kernels(OP):
        test_a_batch_changes_no_bit(bench)
        test_two_sequences_may_begin_from_one_slot(bench)
        test_accepted_columns_run_again_leave_the_state_of_the_straight_run(bench, 2)
        test_a_nan_stays_in_its_sequence(bench)
