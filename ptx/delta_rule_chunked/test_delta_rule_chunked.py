"""Protects `delta_rule_chunked`: it agrees with the plain recurrence at every length and chunk."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from ptx.delta_rule_chunked.op import OP
from ptx.delta_rule_chunked.ref import delta_rule_chunked
from ptx.inventory import targets
from ptx.numerics import mismatch
from ptx.op import OpError, pick
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
HEADS = [(1, 3, 2, 2), (3, 3, 5, 7), (2, 4, 7, 3), TINY, (2, 6, 128, 128)]


def _case(n_tokens, chunk, heads=TINY, seed=0):
    rows, start = delta_inputs(n_tokens, *heads, seed=seed)
    rows = {name: array.astype(np.float32) for name, array in rows.items()}
    return Carried(OP, rows, {"chunk": chunk}, start.astype(np.float32), "o")


def _plain(case, n_key_heads=2):
    return plain_delta_rule(**case.rows, start=case.start, n_key_heads=n_key_heads)


def _fitting(kernels, *cases):
    """Benches of the kernels that take the cases in one call."""
    n_seqs = len(cases)
    rows = {name: np.concatenate([case.rows[name] for case in cases]) for name in cases[0].rows}
    slots = {"starts": np.arange(n_seqs + 1), "state_in": np.arange(n_seqs)}
    return kernels(OP, **rows, **slots, state_out=slots["state_in"], state=cases[0].start[None])


def _wide(case):
    """One call of the reference in float64: o and the end state."""
    rows = {name: array.astype(np.float64) for name, array in case.rows.items()}
    state = case.start[None].astype(np.float64)
    slot = np.array([0])
    o = delta_rule_chunked(
        **rows, **case.fixed, starts=np.array([0, case.n_tokens]), state_in=slot, state_out=slot,
        state=state,
    )
    return o, state[0]


def _assert_near(got, want):
    for name, left, right in zip(("o", "state"), got, want, strict=True):
        report = mismatch(left, right, OP.tolerance)
        assert report is None, f"{name}: {report}"


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_against_float64(bench, heads):
    case = _case(75, 16, heads)
    _assert_near(run_pieces(bench, case, [75]), _wide(case))


@pytest.mark.parametrize("fresh", [True, False], ids=["zero-state", "used-state"])
@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 64])
def test_agrees_with_the_recurrence_around_the_chunk(bench, chunk, fresh):
    for n_tokens in sorted({1, max(chunk - 1, 1), chunk, chunk + 1, 2 * chunk + 3}):
        case = _case(n_tokens, chunk)
        if fresh:
            case.start[:] = 0
        want = _plain(case)
        for got, exact in zip(_wide(case), want, strict=True):
            assert got == pytest.approx(exact, rel=1e-10, abs=1e-12), n_tokens
        _assert_near(run_pieces(bench, case, [n_tokens]), want)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_heads_are_those_of_the_recurrence(bench, heads):
    case = _case(21, 8, heads)
    _assert_near(run_pieces(bench, case, [21]), _plain(case, heads[0]))


@pytest.mark.parametrize("length", BORDER_LENGTHS)
def test_every_split_agrees_with_token_by_token(bench, length):
    case = _case(length + N_DECODE_STEPS, 32)
    want = _plain(case)
    for lengths in cuts(length):
        _assert_near(run_pieces(bench, case, lengths), want)


def test_a_chunk_longer_than_the_sequence_is_one_chunk(bench):
    case = _case(19, 10**6)
    _assert_near(run_pieces(bench, case, [19]), _plain(case))


def test_a_long_sequence_with_slow_decay_agrees(bench):
    case = _case(1500, 64)
    case.rows["g"] *= 0.01
    _assert_near(run_pieces(bench, case, [1500]), _plain(case))


@pytest.mark.parametrize("strong", [-300.0, -1e4, -1e30, -np.inf])
def test_a_strong_decay_costs_its_neighbours_no_digits(strong):
    case = _case(40, 16)
    case.rows["g"][[3, 20, 33]] = strong
    args = {**case.rows, **case.fixed, "state": case.start[None].copy()}
    args["starts"], slot = np.array([0, 40]), np.array([0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        o = delta_rule_chunked(**args, state_in=slot, state_out=slot)
    _assert_near((o, args["state"][0]), _plain(case))


def test_sequences_of_a_batch_leave_each_other_alone(bench):
    cases = [_case(n, 16, seed=n) for n in (1, 17, 40, 3, 16)]
    for case, got in zip(cases, run_batch(bench, cases, seed=1), strict=True):
        alone = run_pieces(bench, case, [case.n_tokens])
        assert [a.tobytes() for a in got] == [a.tobytes() for a in alone]


def test_without_writes_the_state_only_decays(bench):
    case = _case(37, 16)
    case.rows["beta"][:] = 0
    state = run_pieces(bench, case, [37])[1]
    want = np.exp(case.rows["g"].sum(axis=0, dtype=np.float64))[:, None, None] * case.start
    assert state == pytest.approx(want, rel=1e-5, abs=1e-9)


def test_shapes_that_do_not_fit_are_refused(bench):
    case = _case(2, 16)
    case.rows["qkv"] = np.zeros((2, 161))
    with pytest.raises(OpError, match=r"needs C = 2 Nk Dk \+ Nv Dv with Nk dividing Nv"):
        run_pieces(bench, case, [2])


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_kernels_agree_with_the_recurrence(kernels, chunk):
    case = _case(9, chunk)
    for bench in _fitting(kernels, case):
        _assert_near(run_pieces(bench, case, [9]), _plain(case))
        _assert_near(run_pieces(bench, case, [2, 6, 1]), _plain(case))


@pytest.mark.parametrize("n_tokens", [15, 16, 17, 35])
def test_kernels_around_their_longest_chunk(kernels, n_tokens):
    case = _case(n_tokens, 64, (1, 2, 16, 9))
    for bench in _fitting(kernels, case):
        _assert_near(run_pieces(bench, case, [n_tokens]), _plain(case, 1))


@pytest.mark.parametrize("heads", [*HEADS[:3], (1, 2, 33, 8), (1, 1, 128, 17)], ids=str)
def test_kernels_at_every_width(kernels, heads):
    case = _case(18, 16, heads)
    for bench in _fitting(kernels, case):
        _assert_near(run_pieces(bench, case, [18]), _plain(case, heads[0]))


@pytest.mark.parametrize("strong", [-300.0, -1e30, -np.inf])
def test_a_strong_decay_costs_a_kernel_no_digits(kernels, strong):
    case = _case(20, 16, (1, 2, 16, 8))
    case.rows["g"][[3, 11, 17]] = strong
    for bench in _fitting(kernels, case):
        _assert_near(run_pieces(bench, case, [20]), _plain(case, 1))


def test_sequences_of_a_kernel_are_apart(kernels):
    cases = [_case(n, 4, seed=n) for n in (1, 5, 3)]
    for bench in _fitting(kernels, *cases):
        for case, got in zip(cases, run_batch(bench, cases, seed=1), strict=True):
            _assert_near(got, _plain(case))


def test_a_row_too_wide_for_shared_memory_has_no_kernel():
    portable = OP.kernels[-1]
    assert not portable.fits({"Dk": 32 * 180})
    assert portable.constants({"Dk": 32 * 179})["n_rows"] == 1
    assert portable.constants({"Dk": 128})["n_rows"] == 16


# The kernels on tensor cores


def test_which_dims_the_tensor_cores_serve():
    known = targets()
    dims = {"T": 16, "C": 10240, "Nv": 48, "Dv": 128, "Dk": 128, "S": 1, "S+1": 2, "P": 1}
    for target in ("sm_90a", "sm_120a"):
        assert pick(OP, known[target], dims).stem == "sm_80"
    for other in ({"T": 15}, {"S": 2}, {"Dk": 48}, {"Dk": 160}, {"Dv": 24}):
        assert pick(OP, known["sm_90a"], {**dims, **other}).stem == "portable"
    # What a multiprocessor gives a block: 99 KB from sm_86 on.
    assert OP.kernels[0].launch(dims).shared_bytes <= 99 << 10


# (tokens, chunk, heads, strong decays): a last step of one token, with both parts of a long key;
# stages used again (9 steps of 4); a full step and slices of Dv. All widths of a key, and 1, 2 and
# 4 warps with rows.
TENSOR_CASES = [
    (17, 64, (1, 1, 128, 16), False),
    (33, 4, (1, 1, 32, 64), True),
    (16, 100, (2, 2, 64, 96), True),
]


@pytest.mark.parametrize(("n_tokens", "chunk", "heads", "strong"), TENSOR_CASES, ids=str)
def test_tensor_cores_agree_with_the_recurrence(kernels, n_tokens, chunk, heads, strong):
    case = _case(n_tokens, chunk, heads)
    if strong:
        case.rows["g"][[0, 3, 11, 15], 0] = [-5.0, -np.inf, -1e30, -300.0]
    for bench in _fitting(kernels, case):
        _assert_near(run_pieces(bench, case, [n_tokens]), _plain(case, heads[0]))


def test_tensor_cores_keep_sequences_and_their_tails_apart(kernels):
    cases = [_case(n, 64, (1, 2, 32, 16), seed=n) for n in (1, 31, 18)]
    for bench in _fitting(kernels, *cases):
        for case, got in zip(cases, run_batch(bench, cases, seed=1), strict=True):
            _assert_near(got, _plain(case, 1))


def test_rows_of_the_state_may_differ_by_any_power(kernels):
    # Halves are scaled row by row: a row keeps its digits whatever its size and its neighbours.
    case = _case(21, 64, (1, 1, 32, 16))
    power = np.ldexp(1.0, np.arange(-56, 56, 7)).astype(np.float32)
    scaled = replace(case, rows={**case.rows, "qkv": case.rows["qkv"].copy()},
                     start=case.start * power[None, :, None])
    scaled.rows["qkv"][:, 64:] *= power
    for bench in _fitting(kernels, case):
        o, state = run_pieces(bench, scaled, [21])
        _assert_near((o / power, state / power[:, None]), _plain(case, 1))
