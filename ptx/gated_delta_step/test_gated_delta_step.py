"""Protects `gated_delta_step`: its four parts in order, both states, slots, tickets, any split.

Long because the four parts have edges of their own, and launches in a row one more.
"""

import math

import numpy as np
import pytest

from ptx.devices.emulator import EmulatorDevice
from ptx.gated_delta_step.op import MANY, OP
from ptx.gated_delta_step.ref import gated_delta_step
from ptx.numerics import mismatch, widen_bf16
from ptx.op import OpError
from ptx.recurrent_cases import delta_inputs, plain_delta_rule

# Large enough to be seen beside o^2, which has no other scale that y would show.
EPS = 1e-4
# Nk, Nv, Dk, Dv, W. A slot of S is whole pieces of 16 bytes, for the guards around it.
TINY = (2, 6, 8, 4, 4)
PORTABLE = [(1, 1, 2, 2, 2), (3, 3, 4, 7, 4), TINY, (1, 4, 33, 5, 3)]
# Three value heads of a key head, as in the model; two key heads; one value head; fewer taps.
TUNED = [(1, 3, 128, 128, 4), (2, 2, 128, 128, 2)]
ROWS = ("u", "z", "a", "b")


def _case(n_tokens, heads=TINY, seed=0):
    """One sequence: its rows, its weights, and what its slot begins with.

    Columns of odd seeds are so small that the constant under the root of l2 matters.
    """
    n_key_heads, n_heads, d_key, d_value, n_taps = heads
    rng = np.random.default_rng([seed, n_tokens, *heads])
    _, state = delta_inputs(n_tokens, n_key_heads, n_heads, d_key, d_value, seed)
    n_channels = 2 * n_key_heads * d_key + n_heads * d_value
    fixed = np.random.default_rng(heads)
    scale = 1e-3 if seed % 2 else 1
    case = {
        "u": scale * rng.standard_normal((n_tokens, n_channels)),
        "z": 2 * rng.standard_normal((n_tokens, n_heads, d_value)),
        "a": rng.standard_normal((n_tokens, n_heads)),
        "b": 2 * rng.standard_normal((n_tokens, n_heads)),
        "conv_w": fixed.standard_normal((n_channels, n_taps)),
        "a_log": fixed.uniform(-3, 1, n_heads),
        "dt_bias": fixed.uniform(-2, 1, n_heads),
        "norm_w": 1 + 0.2 * fixed.standard_normal(d_value),
        "conv_state": scale * rng.standard_normal((n_taps - 1, n_channels)),
        "state": state,
    }
    return {name: array.astype(np.float32) for name, array in case.items()}


def _batch(cases, slots=None, targets=None, n_slots=None):
    """Arguments of one call with all sequences, by default in slots 0, 1, ... and in place."""
    slots = list(range(len(cases))) if slots is None else slots
    targets = slots if targets is None else targets
    n_slots = n_slots or max(*slots, *targets) + 1
    first = cases[0]
    args = {name: array for name, array in first.items() if name not in ROWS}
    args |= {name: np.concatenate([case[name] for case in cases]) for name in ROWS}
    for name in ("conv_state", "state"):
        args[name] = np.full((n_slots, *first[name].shape), 0.5, np.float32)
        for slot, case in zip(slots, cases, strict=True):
            args[name][slot] = case[name]
    n_key_heads = (first["u"].shape[1] - first["z"][0].size) // (2 * first["state"].shape[-1])
    return {
        **args, "starts": np.cumsum([0, *[len(case["u"]) for case in cases]]),
        "state_in": np.array(slots), "state_out": np.array(targets), "eps": EPS,
        "tickets": np.zeros(len(cases) * n_key_heads + 3, np.uint32),
    }


def _part(case, first, end, conv_state, state):
    """Rows of a sequence, begun with what an earlier call left."""
    rows = {name: case[name][first:end] for name in ROWS}
    return {**case, **rows, "conv_state": conv_state, "state": state}


def _wide(args):
    return {
        n: a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype == np.float32
        else np.array(a) if isinstance(a, np.ndarray) else a
        for n, a in args.items()
    }


def _check(bench, args):
    """Like `bench.check`, but the states as float32 sums and as bits."""
    got, wide = bench.run(OP, **args), _wide(args)
    want = gated_delta_step(**wide)
    assert mismatch(widen_bf16(got["y"]), want, "bf16_output") is None
    assert mismatch(got["state"], wide["state"], "f32_reduction") is None
    assert got["conv_state"].tobytes() == wide["conv_state"].astype(np.float32).tobytes()
    assert not got["tickets"].any()
    if hasattr(bench, "run_bare"):
        bench.run_bare(OP, **args)
    return got


def _pieces(bench, case, lengths):
    """y of all rows and the end states, in calls of the given lengths; every other moves slots."""
    conv_state, state, done, parts = case["conv_state"], case["state"], 0, []
    for call, length in enumerate(lengths):
        part = _part(case, done, done + length, conv_state, state)
        target = call % 2
        args = _batch([part], [0], [target], n_slots=2)
        got = bench.run(OP, n_guard=1 + call % 4, **args)
        if target:
            assert got["state"][0].tobytes() == args["state"][0].tobytes()
            assert got["conv_state"][0].tobytes() == args["conv_state"][0].tobytes()
        conv_state, state = got["conv_state"][target], got["state"][target]
        parts.append(got["y"])
        done += length
    return np.concatenate(parts), conv_state, state


def _same(got, want):
    return all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))


def _plain(case, n_key_heads):
    """y, the last columns and the end state of one sequence in float64, from the formulas."""
    c = _wide(case)
    columns = np.concatenate([c["conv_state"], c["u"]])
    n_taps = c["conv_w"].shape[1]
    x = np.empty(c["u"].shape)
    for t in range(len(x)):
        total = sum(c["conv_w"][:, i] * columns[t + i] for i in range(n_taps))
        x[t] = total / (1 + np.exp(-total))
    g = -np.exp(c["a_log"]) * np.log1p(np.exp(c["a"] + c["dt_bias"]))
    beta = 1 / (1 + np.exp(-c["b"]))
    o, state = plain_delta_rule(x, g, beta, c["state"], n_key_heads)
    y = np.empty(o.shape)
    for t, j in np.ndindex(*o.shape[:2]):
        root = math.sqrt(sum(v * v for v in o[t, j]) / o.shape[2] + EPS)
        z = c["z"][t, j]
        y[t, j] = o[t, j] / root * c["norm_w"] * z / (1 + np.exp(-z))
    return y, columns[len(columns) - n_taps + 1 :], state


# The reference


@pytest.mark.parametrize("heads", [*PORTABLE, TUNED[0]], ids=str)
@pytest.mark.parametrize("n_tokens", [1, 2, 5])
def test_against_float64(bench, heads, n_tokens):
    _check(bench, _batch([_case(n_tokens, heads)]))


@pytest.mark.parametrize("heads", PORTABLE, ids=str)
@pytest.mark.parametrize("n_tokens", [1, 2, 7])
def test_reference_against_a_plain_loop(heads, n_tokens):
    case = _case(n_tokens, heads)
    wide = _wide(_batch([case]))
    got = gated_delta_step(**wide)
    y, columns, state = _plain(case, heads[0])
    assert got == pytest.approx(y, rel=1e-10, abs=1e-12)
    assert wide["conv_state"][0] == pytest.approx(columns)
    assert wide["state"][0] == pytest.approx(state, rel=1e-10, abs=1e-12)


def _no_split_changes_a_bit(bench, heads, n_tokens):
    case = _case(n_tokens, heads)
    want = _pieces(bench, case, [n_tokens])
    for lengths in ([1] * n_tokens, [1, n_tokens - 1]):
        assert _same(_pieces(bench, case, lengths), want), lengths


def _a_batch_changes_no_bit(bench, heads, lengths):
    cases = [_case(n, heads, seed) for seed, n in enumerate(lengths)]
    alone = [_pieces(bench, case, [len(case["u"])]) for case in cases]
    rng = np.random.default_rng(3)
    order, slots = rng.permutation(len(cases)), rng.permutation(2 * len(cases))
    slots_in, moved = slots[: len(cases)], rng.random(len(cases)) < 0.5
    slots_out = np.where(moved, slots[len(cases) :], slots_in)
    args = _batch([cases[i] for i in order], slots_in, slots_out, len(slots) + 1)
    got = bench.run(OP, n_guard=3, **args)
    starts = args["starts"]
    for at, i in enumerate(order):
        slot = slots_out[at]
        rows = got["y"][starts[at] : starts[at + 1]]
        assert _same((rows, got["conv_state"][slot], got["state"][slot]), alone[i])
    others = np.setdiff1d(np.arange(len(slots) + 1), slots_out)
    for name in ("conv_state", "state"):
        assert got[name][others].tobytes() == args[name][others].tobytes()
    assert not got["tickets"].any()


def test_rows_do_not_depend_on_calls_or_batches(bench):
    _no_split_changes_a_bit(bench, TINY, 19)
    _a_batch_changes_no_bit(bench, TINY, (1, 3, 1, 17, 2, 1))


def test_two_sequences_may_begin_from_one_slot(bench):
    case = _case(4, TINY)
    args = _batch([case], n_slots=3)
    args |= {"starts": np.array([0, 1, 4]), "state_in": np.array([0, 0]),
             "state_out": np.array([2, 1]), "tickets": np.zeros(2 * TINY[0], np.uint32)}
    got = bench.run(OP, **args)
    for rows, slot in ((slice(0, 1), 2), (slice(1, 4), 1)):
        part = _part(case, rows.start, rows.stop, case["conv_state"], case["state"])
        want = _pieces(bench, part, [rows.stop - rows.start])
        assert _same((got["y"][rows], got["conv_state"][slot], got["state"][slot]), want)


def test_a_nan_stays_in_its_sequence(bench):
    cases = [_case(2, TINY, seed) for seed in range(3)]
    cases[1]["u"][1] = np.nan
    got = bench.run(OP, **_batch(cases))
    y = widen_bf16(got["y"])
    assert np.isfinite(y[[0, 1, 2, 4, 5]]).all()
    assert np.isnan(y[3]).all()
    assert [bool(np.isfinite(s).all()) for s in got["state"]] == [True, False, True]


def test_far_ends(bench):
    case = _case(3, TINY)
    case["a"][0], case["b"][0], case["b"][1] = 1e4, -200, 200
    case["z"][1], case["z"][2] = -1000, 0
    got = bench.run(OP, **_batch([case]))
    # A rate of 0 writes nothing and a decay of 0 leaves nothing: o is 0, and so is y.
    assert not widen_bf16(got["y"]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": np.zeros((2, 57)), "conv_w": np.zeros((57, 4)), "conv_state": np.zeros((1, 3, 57))},
         "needs C = 2 Nk Dk . Nv Dv with Nk dividing Nv"),
        ({"conv_state": np.zeros((1, 4, 56))}, "needs one column fewer in conv_state than taps"),
        ({"starts": [0, 1, 2]}, "needs one more cell in starts than sequences"),
        ({"tickets": np.zeros(1)}, "needs a ticket for each sequence and key head"),
        ({"z": np.zeros((2, 6, 5))}, r"norm_w is \[4\], expected \[5\]"),
    ],
    ids=["channels", "columns", "starts", "tickets", "z"],
)
def test_shapes_that_do_not_fit_are_refused(bench, change, message):
    args = {**_batch([_case(2)]), "y": np.zeros((2, 6, 4)), **change}
    with pytest.raises(OpError, match=message):
        bench.run(OP, **args)


# Kernels


@pytest.mark.parametrize("heads", [*PORTABLE, *TUNED], ids=str)
def test_kernels(kernels, heads):
    # Fewer rows than old columns, as many, and more; in place and to another slot.
    cases = [_case(n, heads, seed=n) for n in ((1, 4, 2) if heads != TUNED[1] else (1,))]
    args = _batch(cases, [3, 0, 2][: len(cases)], [3, 1, 2][: len(cases)])
    for bench in kernels(OP, **args):
        _check(bench, args)


def test_kernels_over_the_border_of_a_chunk(kernels):
    case = _case(17, (1, 1, 128, 128, 4))
    args = _batch([case], n_slots=2)
    for bench in kernels(OP, **args):
        got = _check(bench, args)
        want = got["y"], got["conv_state"][0], got["state"][0]
        assert _same(_pieces(bench, case, [1, 16]), want)


@pytest.mark.parametrize("heads", [(1, 2, 8, 4, 4), (1, 1, 128, 128, 4)], ids=str)
def test_rows_of_kernels_do_not_depend_on_calls_or_batches(kernels, heads):
    for bench in kernels(OP, **_batch([_case(1, heads)])):
        _no_split_changes_a_bit(bench, heads, 3)
        # Few sequences and many have blocks of their own, with the same bits.
        for lengths in ((1, 2), (1, 2, 1, 1)):
            assert (len(lengths) >= MANY) == (len(lengths) == 4)
            _a_batch_changes_no_bit(bench, heads, lengths)


def test_sequences_of_a_kernel_are_apart(kernels):
    for bench in kernels(OP, **_batch([_case(1)])):
        test_two_sequences_may_begin_from_one_slot(bench)
        test_a_nan_stays_in_its_sequence(bench)
        test_far_ends(bench)


def test_steps_in_a_row_wait_for_each_other():
    # The sm_90a kernel is a programmatic launch: what the step before wrote, it may touch only
    # after its wait, which the emulator watches.
    case = _case(3, TUNED[0])
    args = _batch([case])
    device = EmulatorDevice(target="sm_90a")
    buffers = {}
    for param in OP.params:
        if param.shape is not None and param.name not in (*ROWS, "y"):
            cells = np.ascontiguousarray(args[param.name])
            buffers[param.name] = device.allocate(cells.shape, param.dtype, param.name)
            device.upload(buffers[param.name], cells)
    device.upload(buffers["starts"], np.array([0, 1]))
    rows = []
    for t in range(3):
        step = {name: device.allocate((1, *case[name].shape[1:]), "f32", name) for name in ROWS}
        for name, buffer in step.items():
            device.upload(buffer, case[name][t : t + 1])
        rows.append({**step, "y": device.allocate((1, 3, 128), "bf16", "y")})
    for step in rows:
        device.launch(OP, **buffers, **step, eps=EPS)
    wide = _wide(args)
    want = gated_delta_step(**wide)
    y = np.concatenate([device.download(step["y"]) for step in rows])
    assert mismatch(widen_bf16(y), want, "bf16_output") is None
    assert mismatch(device.download(buffers["state"]), wide["state"], "f32_reduction") is None
