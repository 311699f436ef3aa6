"""Owns what must hold for the oracle whatever its weights: splits, replay, restore, positions.

The list is that of the specification's section 14. Sums run in another order when a call is split,
so equality here means 1e-11 of a value's scale, far below anything that a mistake would leave.
It is long because the list is.
"""

import dataclasses
from functools import cache

import numpy as np
import pytest

from reference import delta
from reference.bf16 import round_bf16
from reference.compare import mismatch
from reference.config import TINY, Config
from reference.errors import OracleError
from reference.hybrid import Hybrid, Output
from reference.rounding import ENGINE_BF16, EXACT, F32, POINTS, TRANSFORMERS_BF16, Rounding
from reference.state import KvRows, State, commit, zero_state
from reference.synthetic import lively
from reference.weights import DictWeights, tensor

IDS = [(11 * t * t + 3 * t + 1) % 320 for t in range(40)]
# Two key/value heads catch indexing that a single one hides.
TWO_HEADS = dataclasses.replace(
    TINY, n_layers=4, n_heads=12, n_kv_heads=2, n_key_heads=4, n_value_heads=12
)
CONFIGS = pytest.mark.parametrize("config", [TINY, TWO_HEADS], ids=["one_kv_head", "two_kv_heads"])


@cache
def model_of(config: Config, chunk: int | None = None, rounding: Rounding = EXACT) -> Hybrid:
    return Hybrid(lively(config, seed=4), config, rounding, chunk)


def assert_same_state(got: State, want: State) -> None:
    wanted = want.arrays()
    for name, array in got.arrays().items():
        assert (found := mismatch(array, wanted[name], "f64_path", name)) is None, found


def assert_same(got: Output, want: Output, rows: slice = slice(None)) -> None:
    found = mismatch(got.logits, want.logits[rows], "f64_path", "logits")
    assert found is None, found
    assert_same_state(got.state, want.state)


@pytest.mark.parametrize("incoming", [False, True], ids=["zero", "incoming"])
@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_chunked_form_is_the_recurrent_one(chunk: int, incoming: bool) -> None:
    draw = np.random.default_rng(chunk)
    for n in {1, max(chunk - 1, 1), chunk, chunk + 1, 2 * chunk + 3}:
        q, k = draw.standard_normal((2, n, 6, 16))
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        v = draw.standard_normal((n, 6, 8))
        # Decays from none to so fast that quotients of products would underflow.
        g, beta = -(10.0 ** draw.uniform(-6, 2.5, (n, 6))), draw.uniform(0, 1, (n, 6))
        start = draw.standard_normal((6, 8, 16)) * incoming
        want_out, want_state = delta.recurrent(q, k, v, g, beta, start)
        got_out, got_state = delta.chunked(q, k, v, g, beta, start, chunk)
        assert (found := mismatch(got_out, want_out, "f64_path", f"out {n}")) is None, found
        assert (found := mismatch(got_state, want_state, "f64_path", f"state {n}")) is None, found


@CONFIGS
@pytest.mark.parametrize("pieces", [(1, 39), (2, 38), (3, 37), (17, 23), (2, 1, 3, 34), (1,) * 40])
@pytest.mark.parametrize("chunk", [None, 16], ids=["recurrent", "chunk16"])
def test_pieces_equal_one_call(
    config: Config, pieces: tuple[int, ...], chunk: int | None
) -> None:
    model = model_of(config, chunk)
    state, at = zero_state(config), 0
    whole = model.forward(IDS)
    for piece in pieces:
        out = model.forward(IDS[at : at + piece], state)
        state, at = out.state, at + piece
    assert_same(out, whole, slice(40 - pieces[-1], None))
    assert state.n_tokens == 40


@CONFIGS
@pytest.mark.parametrize("rounding", [EXACT, ENGINE_BF16], ids=["exact", "bf16"])
def test_committing_some_columns_equals_running_only_those(
    config: Config, rounding: Rounding
) -> None:
    model = model_of(config, rounding=rounding)
    before = model.forward(IDS[:20]).state
    verify = model.forward(IDS[20:26], before, record=True)
    for accepted in range(1, 7):
        only = model.forward(IDS[20 : 20 + accepted], before).state
        kept = commit(config, before, verify.taps, accepted, rounding)
        assert kept.n_tokens == 20 + accepted
        assert_same_state(kept, only)


@pytest.mark.parametrize(("n", "record"), [(-1, True), (7, True), (1, False)])
def test_committing_what_was_not_recorded_is_refused(n: int, record: bool) -> None:
    before = zero_state(TINY)
    out = model_of(TINY).forward(IDS[:6], record=record)
    with pytest.raises(OracleError, match="commit"):
        commit(TINY, before, out.taps, n)


def test_a_chunk_of_no_tokens_is_refused() -> None:
    with pytest.raises(OracleError, match="chunk"):
        Hybrid(lively(TINY, 4), TINY, chunk=0)


def test_a_call_leaves_the_state_that_it_is_given() -> None:
    model = model_of(TINY)
    before = model.forward(IDS[:9]).state
    saved = {name: array.copy() for name, array in before.arrays().items()}
    model.forward(IDS[9:], before)
    for name, array in before.arrays().items():
        np.testing.assert_array_equal(array, saved[name])


def test_a_restored_state_continues_like_the_uninterrupted_run() -> None:
    model = model_of(TINY)
    first = model.forward(IDS[:23])
    arrays = {name: array.copy() for name, array in first.state.arrays().items()}
    restored = State.from_arrays(TINY, arrays)
    assert_same(model.forward(IDS[23:], restored), model.forward(IDS), slice(23, None))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("state.0.matrix", "missing"),
        ("state.2.conv", "misshapen"),
        ("state.0.n_tokens", "older"),
        ("state.3.k", "missing"),
        ("state.3.k", "misshapen"),
    ],
)
def test_a_state_that_does_not_match_itself_is_refused(name: str, change: str) -> None:
    arrays = dict(model_of(TINY).forward(IDS[:5]).state.arrays())
    if change == "missing":
        del arrays[name]
    elif change == "older":
        arrays[name] = np.asarray(4)
    else:
        arrays[name] = arrays[name][..., :-1]
    with pytest.raises(OracleError):
        State.from_arrays(TINY, arrays)


def test_attention_sees_position_differences_only() -> None:
    model = model_of(TINY)
    here = model.forward(IDS)
    positions = 1000 + np.arange(40)
    moved = model.forward(IDS, positions=positions)
    # Angles of large positions lose about log10(position) digits, hence not f64_path.
    assert (found := mismatch(moved.logits, here.logits, "f32_elementwise")) is None, found
    equal_axes = model.forward(IDS, positions=np.tile(np.arange(40), (3, 1)))
    np.testing.assert_array_equal(equal_axes.logits, here.logits)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_each_position_axis_matters(axis: int) -> None:
    model = model_of(TINY)
    positions = np.tile(np.arange(40), (3, 1))
    positions[axis, 20:] += 3
    moved = model.forward(IDS, positions=positions)
    still = model.forward(IDS)
    np.testing.assert_array_equal(moved.logits[:20], still.logits[:20])
    assert mismatch(moved.logits[20:], still.logits[20:], "f32_path") is not None


@CONFIGS
def test_one_heads_gate_rows_change_only_its_slice(config: Config) -> None:
    name, head, e = "model.layers.3.self_attn.q_proj.weight", 4, config.d_head
    arrays = {n: tensor(lively(config, 4), n).copy() for n in lively(config, 4).names()}
    arrays[name].reshape(config.n_heads, 2, e, -1)[head, 1] *= -1.5
    before = model_of(config).forward(IDS, record=True).taps[3]["attn_out"]
    after = Hybrid(DictWeights(arrays), config).forward(IDS, record=True).taps[3]["attn_out"]
    changed = [h for h in range(config.n_heads) if not np.array_equal(before[:, h], after[:, h])]
    assert changed == [head]


def test_write_strength_zero_only_decays() -> None:
    draw = np.random.default_rng(8)
    q, k, v = draw.standard_normal((3, 5, 2, 4))
    g, start = -draw.uniform(0, 1, (5, 2)), draw.standard_normal((2, 4, 4))
    for form in (delta.recurrent, lambda *a: delta.chunked(*a, 3)):
        _, state = form(q, k, v, g, np.zeros((5, 2)), start)
        want = np.exp(g.sum(axis=0))[:, None, None] * start
        assert mismatch(state, want, "f64_path") is None


def test_a_repeated_unit_key_reads_back_the_last_value() -> None:
    draw = np.random.default_rng(9)
    key = draw.standard_normal((2, 4))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    keys = np.broadcast_to(key, (6, 2, 4))
    v = draw.standard_normal((6, 2, 3))
    start = draw.standard_normal((2, 3, 4))
    still, full = np.zeros((6, 2)), np.ones((6, 2))
    for form in (delta.recurrent, lambda *a: delta.chunked(*a, 4)):
        read, _ = form(keys, keys, v, still, full, start)
        assert mismatch(read, v, "f64_path") is None


def test_padding_rows_of_the_head_never_win() -> None:
    config = dataclasses.replace(TINY, n_vocab_real=300)
    arrays = {n: tensor(lively(TINY, 4), n).copy() for n in lively(TINY, 4).names()}
    arrays["lm_head.weight"][300:] *= 40.0
    model = Hybrid(DictWeights(arrays), config)
    found = model.greedy(IDS, 16)
    assert max(found.ids) < 300
    assert max(int(np.argmax(logits)) for logits in found.logits) >= 300


def test_sequences_do_not_influence_each_other() -> None:
    model, other_ids = model_of(TINY), IDS[::-1]
    alone = [model.forward(ids) for ids in (IDS, other_ids)]
    states = [zero_state(TINY), zero_state(TINY)]
    last: dict[int, Output] = {}
    for at in range(0, 40, 8):
        for which, ids in enumerate((IDS, other_ids)):
            last[which] = model.forward(ids[at : at + 8], states[which])
            states[which] = last[which].state
    for which in (0, 1):
        assert_same(last[which], alone[which], slice(32, None))
        again = [model.forward(IDS[:8]), model.forward(other_ids[:8])][which]
        first = model.forward((IDS, other_ids)[which][:8])
        np.testing.assert_array_equal(again.logits, first.logits)


@pytest.mark.parametrize("depth", [1, 3])
def test_greedy_with_drafts_is_greedy(depth: int) -> None:
    model = model_of(TINY)
    want = model.greedy(IDS, 24).ids
    prompt = model.forward(IDS)
    pending = model.best(prompt.logits[-1])[0]
    rows = model.mtp(prompt.hidden[:-1], IDS[1:]).kv
    state, hidden, ids, accepted = prompt.state, prompt.hidden[-1], [pending], 0
    # `hidden` belongs to the last executed token, `pending` follows it, `rows` end before it.
    while len(ids) < 24:
        drafts = model.draft(hidden, pending, rows, rows.n_tokens, depth).ids
        verify = model.forward([pending, *drafts], state, record=True)
        choices = [model.best(row)[0] for row in verify.logits]
        good = next((i for i, d in enumerate(drafts) if d != choices[i]), depth)
        state = commit(TINY, state, verify.taps, good + 1)
        shifted = np.concatenate([hidden[None], verify.hidden[:good]])
        rows = model.mtp(shifted, [pending, *drafts[:good]], rows).kv
        hidden, pending = verify.hidden[good], choices[good]
        ids += choices[: good + 1]
        accepted += good
    assert ids[:24] == want
    assert rows.n_tokens + 1 == state.n_tokens


@pytest.mark.parametrize("rounding", [F32, ENGINE_BF16, TRANSFORMERS_BF16], ids=lambda r: r.name)
def test_rounded_paths_stay_on_their_grids(rounding: Rounding) -> None:
    taps = model_of(TINY, rounding=rounding).forward(IDS, record=True).taps
    point_of = {
        "input_norm": "norm", "q_raw": "projection", "k": "qk", "attn_out": "attn_out",
        "conv_out": "conv_out", "g": "g", "delta_out": "delta_out", "gated": "gated",
        "mixer_out": "mixer_out", "mlp_act": "mlp_act", "resid": "resid",
    }
    for layer in range(TINY.n_layers):
        for tap, point in point_of.items():
            if tap in taps[layer]:
                array = taps[layer][tap]
                np.testing.assert_array_equal(array, rounding(point, array), err_msg=tap)


@pytest.mark.parametrize("chunk", [None, 16], ids=["recurrent", "chunk16"])
@pytest.mark.parametrize("point", POINTS)
def test_every_rounding_point_is_one(point: str, chunk: int | None) -> None:
    coarse = model_of(TINY, chunk, EXACT.replaced(**{point: "bf16"})).forward(IDS)
    exact = model_of(TINY, chunk).forward(IDS)
    assert not np.array_equal(coarse.logits, exact.logits)
    if point == "delta_state":
        for name, array in coarse.state.arrays().items():
            if name.endswith("matrix"):
                np.testing.assert_array_equal(array, round_bf16(array))


@pytest.mark.parametrize(
    ("ids", "positions"),
    [
        ([], None), ([-1], None), ([320], None), ([1.5], None), ([[1, 2]], None),
        ([1, 2], [0]), ([1, 2], [[0, 1], [0, 1]]), ([1, 2], [0.0, 1.0]),
    ],
)
def test_bad_ids_and_positions_are_refused(ids: list[int], positions: list[int] | None) -> None:
    with pytest.raises(OracleError):
        model_of(TINY).forward(ids, positions=positions)


def test_scores_are_recorded_on_request_and_hide_later_rows() -> None:
    tap = model_of(TINY).forward(IDS[:6], record=True, scores=True).taps[3]
    hidden = np.triu(np.ones((6, 6), dtype=bool), 1)
    assert (np.isneginf(tap["scores"]) == hidden[:, None, :]).all()
    assert isinstance(model_of(TINY).forward(IDS[:6]).state.layers[3], KvRows)
    assert "scores" not in model_of(TINY).forward(IDS[:6], record=True).taps[3]
