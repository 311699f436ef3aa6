"""Protects `rope_append_pages`: both pairings, pages and rows, the one rounding, rows alone."""

import numpy as np
import pytest

from ptx.numerics import mismatch, round_to_bf16
from ptx.op import OpError
from ptx.rope_append_kv.ref import rope_append_kv
from ptx.rope_append_pages.op import OP

BOTH = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
# T, H, G, E, rows of a page
SHAPES = [(1, 1, 1, 2, 1), (3, 4, 4, 10, 3), (2, 2, 1, 130, 4), (2, 9, 3, 64, 16), (3, 3, 2, 16, 5),
          (1, 2, 1, 128, 2), (1, 1, 1, 32, 1)]


def _inputs(n_tokens, n_heads, n_kv_heads, d_head, n_rows, interleaved):
    rng = np.random.default_rng(n_tokens)
    n_pages = 2 + 2 * n_tokens // n_rows
    kv_shape = (n_tokens, n_kv_heads, d_head)
    pages = round_to_bf16(rng.standard_normal((2, n_pages, n_kv_heads, n_rows, d_head)))
    return {
        "q": rng.standard_normal((n_tokens, n_heads, d_head)),
        "k": rng.standard_normal(kv_shape),
        "v": rng.standard_normal(kv_shape),
        "positions": rng.integers(0, 8192, n_tokens),
        "slots": rng.permutation(n_pages * n_rows)[:n_tokens],
        "inv_freq": 1e5 ** (-np.arange(d_head // 2) / (d_head / 2)),
        "k_pages": pages[0],
        "v_pages": pages[1],
        "interleaved": interleaved,
    }


def _check(bench, inputs):
    """Against the op with float32 caches in float64; pages outside the slots keep their bits."""
    got = bench.run(OP, **inputs)
    q, k, v = (np.float32(inputs[name]).astype(np.float64) for name in ("q", "k", "v"))
    turned, kept = np.empty_like(k), np.empty_like(v)
    rope_append_kv(q, k, v, inputs["positions"], np.arange(len(k)), np.array(inputs["inv_freq"]),
                   turned, kept, inputs["interleaved"])
    assert mismatch(got["q"], q, "f32_elementwise") is None
    page, row = np.divmod(inputs["slots"], inputs["k_pages"].shape[2])
    assert got["v_pages"][page, :, row].tobytes() == round_to_bf16(kept).tobytes()
    # All but a few cells that lie on a tie have the bits of the one rounding.
    assert np.mean(got["k_pages"][page, :, row] != round_to_bf16(turned)) < 0.005
    for name in ("k_pages", "v_pages"):
        others = got[name].copy()
        others[page, :, row] = inputs[name][page, :, row]
        assert others.tobytes() == inputs[name].tobytes()
    bench.check(OP, **inputs)


@BOTH
@pytest.mark.parametrize("shape", [*SHAPES, (33, 9, 3, 64, 16)], ids=str)
def test_against_float32_caches(bench, shape, interleaved):
    _check(bench, _inputs(*shape, interleaved))


@BOTH
def test_a_quarter_turn_by_hand(bench, kernels, interleaved):
    inputs = _inputs(1, 1, 1, 16, 2, interleaved)
    inputs.update(q=[[np.arange(16)]], k=[[np.arange(16) + 20]], positions=[1], slots=[3])
    inputs["inv_freq"] = [np.pi / 2, *[0] * 7]
    want_q, want_k = np.arange(16.0), np.arange(16.0) + 20
    # The first pair turns by 90 degrees, (a, b) -> (-b, a); the others stay.
    other = 1 if interleaved else 8
    want_q[[0, other]], want_k[[0, other]] = [-other, 0], [-20 - other, 20]
    for each in (bench, *kernels(OP, **inputs)):
        got = each.run(OP, **inputs)
        assert got["q"].ravel() == pytest.approx(want_q, abs=1e-6)
        assert got["k_pages"][1, 0, 1].tolist() == round_to_bf16(want_k).tolist()


def _rows_do_not_depend_on_the_batch_or_the_slot(bench, shape, interleaved):
    inputs = _inputs(*shape, interleaved)
    whole = bench.run(OP, **inputs)
    rng = np.random.default_rng(5)
    for n_rows in (1, 2, 3):
        rows = rng.permutation(shape[0])[:n_rows]
        part = {n: np.asarray(inputs[n])[rows] for n in ("q", "k", "v", "positions")}
        slots = rng.permutation(inputs["k_pages"].shape[0] * shape[4])[:n_rows]
        got = bench.run(OP, n_guard=int(rng.integers(1, 6)), **{**inputs, **part, "slots": slots})
        assert got["q"].tobytes() == whole["q"][rows].tobytes()
        for name in ("k_pages", "v_pages"):
            page, row = np.divmod(slots, shape[4])
            old_page, old_row = np.divmod(inputs["slots"][rows], shape[4])
            assert got[name][page, :, row].tobytes() == whole[name][old_page, :, old_row].tobytes()


@BOTH
def test_rows_do_not_depend_on_the_batch_or_the_slot(bench, interleaved):
    _rows_do_not_depend_on_the_batch_or_the_slot(bench, (23, 9, 3, 10, 4), interleaved)


def test_shapes_that_do_not_fit_are_refused(bench):
    with pytest.raises(OpError, match=r"needs E = 2 J, .*J=4"):
        bench.run(OP, **{**_inputs(2, 2, 1, 6, 3, False), "inv_freq": np.ones(4)})


@BOTH
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape, interleaved):
    inputs = _inputs(*shape, interleaved)
    for bench in kernels(OP, **inputs):
        _check(bench, inputs)


def test_far_positions_in_kernels(kernels):
    inputs = _inputs(6, 2, 1, 64, 4, False)
    inputs["positions"] = np.array([262143, 262142, 131072, 1, 0, 2**31 - 1])
    inputs["inv_freq"] = np.concatenate([1e7 ** (-np.arange(16) / 16), np.arange(16) * np.pi / 4])
    for bench in kernels(OP, **inputs):
        _check(bench, inputs)


@BOTH
@pytest.mark.parametrize("shape", [(3, 2, 1, 10, 4), (3, 2, 1, 32, 4)])
def test_rows_of_kernels_do_not_depend_on_the_batch_or_the_slot(kernels, shape, interleaved):
    for bench in kernels(OP, **_inputs(*shape, interleaved)):
        _rows_do_not_depend_on_the_batch_or_the_slot(bench, shape, interleaved)


def test_a_launch_waits_for_the_one_before(kernels):
    inputs = _inputs(1, 1, 1, 32, 4, False)
    for bench in kernels(OP, **inputs):
        device, buffers = bench.device, {}
        for param in OP.params[:8]:
            shape = np.shape(inputs[param.name])
            buffers[param.name] = device.allocate(shape, param.dtype, param.name)
            device.upload(buffers[param.name], inputs[param.name])
        # A programmatic one may begin at once: it turns what this one turned.
        for _ in range(2):
            device.launch(bench.alone(OP), **buffers, interleaved=False)
        want = bench.run(OP, **{**inputs, "q": bench.run(OP, **inputs)["q"]})
        for name, array in want.items():
            assert device.download(buffers[name]).tobytes() == array.tobytes(), name
