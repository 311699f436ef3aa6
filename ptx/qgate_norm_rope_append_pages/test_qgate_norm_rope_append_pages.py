"""Protects `qgate_norm_rope_append_pages`: pages, rows, the rounding, tuned widths."""

import numpy as np
import pytest

from ptx.numerics import mismatch, round_to_bf16, widen_bf16
from ptx.op import OpError
from ptx.qgate_norm_rope_append_kv.ref import qgate_norm_rope_append_kv
from ptx.qgate_norm_rope_append_pages.op import OP

# T, H, G, E, J, rows of a page
ODD = [(1, 1, 1, 2, 1, 1), (7, 4, 4, 10, 3, 3), (3, 2, 1, 6, 3, 4)]
# Those of the tuned text: a block of four heads with some to spare, all pairs in the first half of
# a warp and in all of it, one, two and four vectors in a lane, more tokens than "few".
TUNED = [(1, 6, 1, 256, 32, 16), (2, 3, 1, 128, 64, 5), (1, 1, 1, 512, 4, 2),
         (17, 3, 2, 128, 16, 3)]
PER_TOKEN = ("qg", "k", "v", "positions")


def _inputs(n_tokens, n_heads, n_kv_heads, d_head, n_pairs, n_rows):
    rng = np.random.default_rng(n_tokens)
    n_pages = 2 + 2 * n_tokens // n_rows
    kv_shape = (n_tokens, n_kv_heads, d_head)
    w_q, w_k = 0.2 * rng.standard_normal((2, d_head))
    pages = round_to_bf16(rng.standard_normal((2, n_pages, n_kv_heads, n_rows, d_head)))
    return {
        "qg": 3 * rng.standard_normal((n_tokens, n_heads, 2 * d_head)),
        "k": 3 * rng.standard_normal(kv_shape),
        "v": rng.standard_normal(kv_shape),
        "w_q": w_q,
        "w_k": w_k,
        "positions": rng.integers(0, 262144, n_tokens),
        "slots": rng.permutation(n_pages * n_rows)[:n_tokens],
        "inv_freq": 1e7 ** (-np.arange(n_pairs) / n_pairs),
        "k_pages": pages[0],
        "v_pages": pages[1],
        "eps": 1e-6,
    }


def _wide(inputs):
    """What the op with float32 caches [P, B, G, E] does in float64."""
    wide = {name: np.float32(a).astype(np.float64) if np.asarray(a).dtype.kind == "f" else a
            for name, a in inputs.items() if not name.endswith("pages")}
    wide["inv_freq"], wide["eps"] = inputs["inv_freq"], inputs["eps"]
    q = np.empty(wide["qg"].shape)[..., : wide["k"].shape[2]]
    gate = np.empty_like(q)
    caches = [widen_bf16(inputs[name]).astype(np.float64).swapaxes(1, 2).copy()
              for name in ("k_pages", "v_pages")]
    flat = [cache.reshape(-1, *cache.shape[2:]) for cache in caches]
    qgate_norm_rope_append_kv(**wide, q=q, gate=gate, k_cache=flat[0], v_cache=flat[1])
    return q, gate, *(cache.swapaxes(1, 2) for cache in caches)


def _check(bench, inputs):
    """Each output by its own measure; pages outside the slots keep their bits."""
    got = bench.run(OP, **inputs)
    q, gate, k, v = _wide(inputs)
    assert mismatch(got["q"], q, "f32_reduction") is None
    assert got["gate"].tobytes() == gate.astype(np.float32).tobytes()
    assert got["v_pages"].tobytes() == round_to_bf16(v).tobytes()
    assert mismatch(widen_bf16(got["k_pages"]), k, "bf16_output") is None
    # All but a few cells that lie on a tie have the bits of the one rounding.
    assert np.mean(got["k_pages"] != round_to_bf16(k)) < 0.005
    page, row = np.divmod(inputs["slots"], inputs["k_pages"].shape[2])
    for name in ("k_pages", "v_pages"):
        others = got[name].copy()
        others[page, :, row] = inputs[name][page, :, row]
        assert others.tobytes() == inputs[name].tobytes()


@pytest.mark.parametrize("shape", [*ODD, *TUNED, (33, 12, 2, 32, 8, 16)], ids=str)
def test_against_float32_caches(bench, shape):
    _check(bench, _inputs(*shape))
    nothing = np.zeros((shape[0], shape[1], shape[3]))
    bench.check(OP, **_inputs(*shape), q=nothing, gate=nothing)


def _rows_do_not_depend_on_the_batch_or_the_slot(bench, shape, n_rows_of_parts):
    inputs = _inputs(*shape)
    whole = bench.run(OP, **inputs)
    rng = np.random.default_rng(5)
    for n_rows in n_rows_of_parts:
        rows = rng.permutation(shape[0])[:n_rows]
        part = {name: inputs[name][rows] for name in PER_TOKEN}
        slots = rng.permutation(inputs["k_pages"].shape[0] * shape[5])[:n_rows]
        got = bench.run(OP, n_guard=int(rng.integers(1, 6)), **{**inputs, **part, "slots": slots})
        for name in ("q", "gate"):
            assert got[name].tobytes() == whole[name][rows].tobytes()
        for name in ("k_pages", "v_pages"):
            page, row = np.divmod(slots, shape[5])
            old_page, old_row = np.divmod(inputs["slots"][rows], shape[5])
            want = whole[name][old_page, :, old_row]
            assert got[name][page, :, row].tobytes() == want.tobytes(), name


@pytest.mark.parametrize("shape", [(23, 6, 1, 32, 8, 4), (23, 2, 1, 7, 1, 3)])
def test_rows_do_not_depend_on_the_batch_or_the_slot(bench, shape):
    _rows_do_not_depend_on_the_batch_or_the_slot(bench, shape, (1, 1, 2, 5, 11, 23))


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
        bench.run(OP, **{**_inputs(2, 3, 1, 6, 3, 4), **change})


@pytest.mark.parametrize("shape", [*ODD, *TUNED], ids=str)
def test_kernels(kernels, shape):
    inputs = _inputs(*shape)
    for bench in kernels(OP, **inputs):
        _check(bench, inputs)
        # On outputs that nobody wrote before, aligned as they are in a model.
        bench.run_bare(OP, **inputs)


def test_far_positions_in_kernels(kernels):
    inputs = _inputs(6, 2, 1, 128, 32, 4)
    inputs["positions"] = np.array([262143, 262142, 131072, 1, 0, 2**31 - 1])
    # Beside the real frequencies, angles near every quarter turn.
    inputs["inv_freq"] = np.concatenate([1e7 ** (-np.arange(16) / 16), np.arange(16) * np.pi / 4])
    for bench in kernels(OP, **inputs):
        _check(bench, inputs)


@pytest.mark.parametrize("shape", [(18, 3, 1, 10, 3, 4), (18, 3, 2, 128, 32, 4)])
def test_rows_of_kernels_do_not_depend_on_the_batch_or_the_slot(kernels, shape):
    # Alone a token has blocks of four heads, among 18 one of all of them; off and on alignment.
    for bench in kernels(OP, **_inputs(*shape)):
        _rows_do_not_depend_on_the_batch_or_the_slot(bench, shape, (1, 5, 2))


def test_the_tuned_text_takes_whole_warps_of_cells():
    dims = {"T": 1, "H": 24, "G": 4, "E": 256, "2E": 512, "J": 32, "P": 1, "B": 1}
    assert OP.kernels[0].fits(dims)
    assert not any(OP.kernels[0].fits({**dims, **other}) for other in (
        {"E": 192}, {"E": 640}, {"J": 12}, {"J": 128}, {"J": 2}))


def test_a_launch_waits_for_the_one_before(kernels):
    inputs = _inputs(1, 1, 1, 128, 32, 4)
    inputs.update(q=np.zeros((1, 1, 128)), gate=np.zeros((1, 1, 128)))
    for bench in kernels(OP, **inputs):
        device = bench.device
        buffers = {}
        for param in OP.params[:12]:
            shape = np.shape(inputs[param.name])
            buffers[param.name] = device.allocate(shape, param.dtype, param.name)
            device.upload(buffers[param.name], inputs[param.name])
        # A programmatic one may begin at once: v is what this one wrote as its gate.
        device.launch(bench.alone(OP), **buffers, eps=1e-6)
        buffers["v"], buffers["gate"] = buffers["gate"], buffers["v"]
        device.launch(bench.alone(OP), **buffers, eps=1e-6)
        want = bench.run(OP, **{**inputs, "v": bench.run(OP, **inputs)["gate"]})
        for name in ("q", "gate", "k_pages", "v_pages"):
            assert device.download(buffers[name]).tobytes() == want[name].tobytes(), name
