"""Protects `qgate_norm_rope_append_kv`: packing, norm, partial turn, cache rows, row invariance."""

import math

import numpy as np
import pytest

from ptx.op import OpError
from ptx.qgate_norm_rope_append_kv.op import OP

# T, H, G, E, J
SHAPES = [(1, 1, 1, 2, 1), (1, 6, 1, 32, 8), (7, 4, 4, 10, 3), (33, 12, 2, 32, 8),
          (3, 2, 1, 6, 3), (5, 6, 1, 256, 32)]
PER_TOKEN = ("qg", "k", "v", "positions")


def _inputs(n_tokens, n_heads, n_kv_heads, d_head, n_pairs):
    rng = np.random.default_rng(n_tokens)
    n_rows = 2 * n_tokens + 3
    kv_shape, cache_shape = (n_tokens, n_kv_heads, d_head), (n_rows, n_kv_heads, d_head)
    w_q, w_k = 0.2 * rng.standard_normal((2, d_head))
    return {
        "qg": 3 * rng.standard_normal((n_tokens, n_heads, 2 * d_head)),
        "k": 3 * rng.standard_normal(kv_shape),
        "v": rng.standard_normal(kv_shape),
        "w_q": w_q,
        "w_k": w_k,
        "positions": rng.integers(0, 262144, n_tokens),
        "slots": rng.permutation(n_rows)[:n_tokens],
        "inv_freq": 1e7 ** (-np.arange(n_pairs) / n_pairs),
        "k_cache": rng.standard_normal(cache_shape),
        "v_cache": rng.standard_normal(cache_shape),
        "eps": 1e-6,
    }


def _plain_head(x, w, position, inv_freq, eps):
    """One head normed and turned, a component at a time."""
    root = math.sqrt(sum(float(c) ** 2 for c in x) / len(x) + eps)
    y = [float(c) / root * (1 + float(weight)) for c, weight in zip(x, w, strict=True)]
    for j, frequency in enumerate(inv_freq):
        cos, sin = math.cos(frequency * position), math.sin(frequency * position)
        a, b = y[j], y[j + len(inv_freq)]
        y[j], y[j + len(inv_freq)] = a * cos - b * sin, b * cos + a * sin
    return y


def _check(bench, inputs):
    nothing = np.full(inputs["qg"].shape, np.nan)[..., : inputs["k"].shape[2]]
    bench.check(OP, **inputs, q=nothing, gate=nothing)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(bench, shape):
    _check(bench, _inputs(*shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_a_plain_loop(bench, shape):
    inputs = _inputs(*shape)
    got = bench.run(OP, **inputs)
    d_head, inv_freq = shape[3], inputs["inv_freq"]
    for t, (position, slot) in enumerate(zip(inputs["positions"], inputs["slots"], strict=True)):
        for head, row in enumerate(inputs["qg"][t]):
            want = _plain_head(row[:d_head], inputs["w_q"], position, inv_freq, 1e-6)
            assert got["q"][t, head] == pytest.approx(want, abs=1e-5)
            assert got["gate"][t, head].tobytes() == row[d_head:].astype(np.float32).tobytes()
        for head, row in enumerate(inputs["k"][t]):
            want = _plain_head(row, inputs["w_k"], position, inv_freq, 1e-6)
            assert got["k_cache"][slot, head] == pytest.approx(want, abs=1e-5)
        assert got["v_cache"][slot].tobytes() == inputs["v"][t].astype(np.float32).tobytes()


def test_a_quarter_turn_by_hand(bench):
    # The mean square of each head is 1 with eps 0.5 added to 0.5; component 4 does not turn.
    root = math.sqrt(0.5)
    got = bench.run(
        OP, qg=[[[0.5, 1, 0, 0.5, 1, 7, 8, 9, 10, 11]]], k=[[[root] * 5]], v=[[[1, 2, 3, 4, 5]]],
        w_q=[0, 0, 0, 0, 1], w_k=[0, 1, 0, 0, -1], positions=[1], slots=[2],
        inv_freq=[math.pi / 2, 0], k_cache=np.zeros((3, 1, 5)), v_cache=np.zeros((3, 1, 5)),
        eps=0.5,
    )
    assert got["q"].ravel() == pytest.approx([0, 1, 0.5, 0.5, 2], abs=1e-6)
    assert got["gate"].ravel().tolist() == [7, 8, 9, 10, 11]
    want_k = [-root, 2 * root, root, root, 0]
    assert got["k_cache"][2].ravel() == pytest.approx(want_k, abs=1e-6)


def test_writes_the_named_rows_and_no_others(bench):
    inputs = _inputs(5, 4, 2, 6, 2)
    got = bench.run(OP, **inputs)
    others = np.setdiff1d(np.arange(len(inputs["k_cache"])), inputs["slots"])
    for name in ("k_cache", "v_cache"):
        start = inputs[name].astype(np.float32)
        assert got[name][others].tobytes() == start[others].tobytes()


def test_the_gate_of_a_head_is_its_own_and_reaches_no_query(bench):
    inputs = _inputs(3, 4, 2, 6, 2)
    before = bench.run(OP, **inputs)
    inputs["qg"][:, 1, 6:] += 1
    after = bench.run(OP, **inputs)
    assert after["q"].tobytes() == before["q"].tobytes()
    changed = [(after["gate"][:, h] != before["gate"][:, h]).any() for h in range(4)]
    assert changed == [False, True, False, False]


def test_components_behind_the_rotary_width_ignore_the_position(bench):
    inputs = _inputs(3, 4, 2, 10, 3)
    before = bench.run(OP, **inputs)
    inputs["positions"] = inputs["positions"] + 17
    after = bench.run(OP, **inputs)
    assert after["q"][..., 6:].tobytes() == before["q"][..., 6:].tobytes()
    assert (after["q"][..., :6] != before["q"][..., :6]).any(axis=(0, 1)).all()


@pytest.mark.parametrize("shift", [1, 1000, 200000])
def test_scores_depend_on_distances_alone(bench, shift):
    inputs = _inputs(9, 2, 1, 32, 8)
    inputs["positions"] = np.arange(9)
    scores = []
    for first in (0, shift):
        got = bench.run(OP, **{**inputs, "positions": first + np.arange(9)})
        k = got["k_cache"][inputs["slots"], 0]
        scores.append(got["q"].astype(float) @ k.T.astype(float))
    assert scores[1] == pytest.approx(scores[0], abs=2e-5)


@pytest.mark.parametrize("shape", [(6, 1, 32, 8), (9, 3, 10, 3), (2, 1, 7, 1), (6, 1, 256, 32)])
def test_rows_do_not_depend_on_the_batch_or_the_slot(bench, shape):
    inputs = _inputs(23, *shape)
    whole = bench.run(OP, **inputs)
    rng = np.random.default_rng(5)
    for n_rows in (1, 1, 2, 5, 11, 23):
        rows = rng.permutation(23)[:n_rows]
        part = {name: inputs[name][rows] for name in PER_TOKEN}
        slots = rng.permutation(len(inputs["k_cache"]))[:n_rows]
        got = bench.run(OP, n_guard=int(rng.integers(1, 6)), **{**inputs, **part, "slots": slots})
        for name in ("q", "gate"):
            assert got[name].tobytes() == whole[name][rows].tobytes()
        for name in ("k_cache", "v_cache"):
            want = whole[name][inputs["slots"][rows]]
            assert got[name][slots].tobytes() == want.tobytes(), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((2, 3, 4))}, r"q is \[2, 3, 4\], expected \[2, 3, 6\]"),
        ({"qg": np.zeros((2, 3, 11))}, "needs heads of qg twice as wide as those of q, .*2E=11"),
        ({"inv_freq": np.ones(4)}, "needs 2 J <= E, .*J=4"),
    ],
    ids=["q", "qg", "inv_freq"],
)
def test_shapes_that_do_not_fit_are_refused(bench, change, message):
    with pytest.raises(OpError, match=message):
        bench.run(OP, **{**_inputs(2, 3, 1, 6, 3), **change})


@pytest.mark.parametrize(
    "shape", [*SHAPES[:3], (3, 2, 1, 6, 3), (2, 3, 2, 72, 34), (1, 1, 1, 80, 7)], ids=str
)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        _check(bench, _inputs(*shape))
        # On outputs that nobody wrote before, too.
        bench.run_bare(OP, **_inputs(*shape))


def test_far_positions_in_kernels(kernels):
    inputs = _inputs(6, 2, 1, 80, 32)
    inputs["positions"] = np.array([262143, 262142, 131072, 1, 0, 2**31 - 1])
    # Beside the real frequencies, angles near every quarter turn.
    inputs["inv_freq"] = np.concatenate([1e7 ** (-np.arange(16) / 16), np.arange(16) * np.pi / 4])
    for bench in kernels(OP):
        _check(bench, inputs)


def test_kernels_do_what_is_said_by_hand(kernels):
    for bench in kernels(OP):
        test_a_quarter_turn_by_hand(bench)
        test_writes_the_named_rows_and_no_others(bench)
        test_the_gate_of_a_head_is_its_own_and_reaches_no_query(bench)
        test_components_behind_the_rotary_width_ignore_the_position(bench)


def test_rows_of_kernels_do_not_depend_on_the_batch_or_the_slot(kernels):
    for bench in kernels(OP):
        test_rows_do_not_depend_on_the_batch_or_the_slot(bench, (3, 1, 10, 3))
