"""Protects `rope_append_kv`: both pairings, the rows it writes, far positions, row invariance."""

import numpy as np
import pytest

from ptx.rope_append_kv.op import OP


def _inputs(n_tokens, n_heads, n_kv_heads, d_head, interleaved):
    rng = np.random.default_rng(n_tokens)
    n_rows = 2 * n_tokens + 3
    kv_shape, cache_shape = (n_tokens, n_kv_heads, d_head), (n_rows, n_kv_heads, d_head)
    return {
        "q": rng.standard_normal((n_tokens, n_heads, d_head)),
        "k": rng.standard_normal(kv_shape),
        "v": rng.standard_normal(kv_shape),
        "positions": rng.integers(0, 8192, n_tokens),
        "slots": rng.permutation(n_rows)[:n_tokens],
        "inv_freq": 1e5 ** (-np.arange(d_head // 2) / (d_head / 2)),
        "k_cache": rng.standard_normal(cache_shape),
        "v_cache": rng.standard_normal(cache_shape),
        "interleaved": interleaved,
    }


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 2), (1, 9, 3, 64), (7, 4, 4, 10), (33, 9, 3, 64)], ids=str
)
def test_against_float64(bench, shape, interleaved):
    bench.check(OP, **_inputs(*shape, interleaved))


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
def test_a_quarter_turn_by_hand(bench, interleaved):
    inputs = _inputs(1, 1, 1, 4, interleaved)
    inputs.update(q=[[[1, 2, 3, 4]]], k=[[[5, 6, 7, 8]]], positions=[1], slots=[2])
    inputs["inv_freq"] = [np.pi / 2, 0]
    got = bench.run(OP, **inputs)
    # The first pair turns by 90 degrees, (a, b) -> (-b, a); the second stays.
    want_q, want_k = ([-2, 1, 3, 4], [-6, 5, 7, 8]) if interleaved else ([-3, 2, 1, 4],
                                                                         [-7, 6, 5, 8])
    assert got["q"].ravel() == pytest.approx(want_q, abs=1e-6)
    assert got["k_cache"][2].ravel() == pytest.approx(want_k, abs=1e-6)


def test_writes_the_named_rows_and_no_others(bench):
    inputs = _inputs(5, 4, 2, 6, True)
    got = bench.run(OP, **inputs)
    others = np.setdiff1d(np.arange(len(inputs["k_cache"])), inputs["slots"])
    for name in ("k_cache", "v_cache"):
        start = inputs[name].astype(np.float32)
        assert got[name][others].tobytes() == start[others].tobytes()
    assert got["v_cache"][inputs["slots"]].tobytes() == inputs["v"].astype(np.float32).tobytes()


def test_position_zero_changes_no_bit(bench):
    inputs = _inputs(3, 4, 2, 6, False)
    inputs["positions"] = [0, 0, 0]
    got = bench.run(OP, **inputs)
    assert got["q"].tobytes() == inputs["q"].astype(np.float32).tobytes()


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
def test_rows_do_not_depend_on_the_batch_or_the_slot(bench, interleaved):
    inputs = _inputs(23, 9, 3, 10, interleaved)
    whole = bench.run(OP, **inputs)
    rng = np.random.default_rng(5)
    for n_rows in (1, 1, 2, 5, 11, 23):
        rows = rng.permutation(23)[:n_rows]
        part = {n: np.asarray(inputs[n])[rows] for n in ("q", "k", "v", "positions")}
        slots = rng.permutation(len(inputs["k_cache"]))[:n_rows]
        got = bench.run(OP, n_guard=int(rng.integers(1, 6)), **{**inputs, **part, "slots": slots})
        assert got["q"].tobytes() == whole["q"][rows].tobytes()
        for name in ("k_cache", "v_cache"):
            want = whole[name][inputs["slots"][rows]]
            assert got[name][slots].tobytes() == want.tobytes(), name


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 9, 3, 64), (3, 4, 4, 10), (2, 2, 1, 130)])
def test_kernels(kernels, shape, interleaved):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(*shape, interleaved))


def test_far_positions_in_kernels(kernels):
    inputs = _inputs(6, 2, 1, 64, False)
    inputs["positions"] = [262143, 262142, 131072, 1, 0, 2**31 - 1]
    # Beside the real frequencies, angles near every quarter turn.
    inputs["inv_freq"] = np.concatenate([1e7 ** (-np.arange(16) / 16), np.arange(16) * np.pi / 4])
    for bench in kernels(OP):
        bench.check(OP, **inputs)


def test_cos_and_sin_of_kernels_are_those_of_float64(kernels):
    # q = 1, 0 in each pair gives cos and sin; each is compared by itself, in units of float32.
    rng = np.random.default_rng(3)
    inputs = _inputs(4, 1, 1, 256, False)
    q = np.zeros((4, 1, 256))
    q[:, :, :128] = 1
    inputs.update(q=q, positions=[262143, 99_991, 7, 1], inv_freq=rng.uniform(0, 2, 128))
    angle = np.array(inputs["positions"])[:, None] * inputs["inv_freq"]
    want = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    for bench in kernels(OP):
        got = bench.run(OP, **inputs)["q"][:, 0]
        assert np.max(np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32))) < 0.5001


def test_kernels_write_the_named_rows_and_no_others(kernels):
    for bench in kernels(OP):
        test_writes_the_named_rows_and_no_others(bench)
        test_position_zero_changes_no_bit(bench)
