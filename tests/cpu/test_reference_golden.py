"""Owns the oracle's published golden values: deterministic weights, tiny configuration, float64.

The digits are those of the specification of the architecture, section 13.
"""

from functools import cache

import numpy as np
import pytest

from reference.config import TINY
from reference.hybrid import Hybrid, Output
from reference.state import DeltaState, KvRows
from reference.synthetic import deterministic, fnv1a

# Half a unit of the sixth decimal, and room for a float32 frequency table on the other side.
DIGITS = 7e-7
PROMPT = [(7 * t * t + 13 * t + 5) % 317 for t in range(48)]
CONTINUATION = [106, 189, 39, 319, 229, 106, 292, 69, 278, 116, 272, 265]
FORMS = pytest.mark.parametrize("chunk", [None, 64, 7], ids=["recurrent", "chunk64", "chunk7"])


@cache
def prompt_run(chunk: int | None) -> tuple[Hybrid, Output]:
    model = Hybrid(deterministic(TINY), TINY, chunk=chunk)
    return model, model.forward(PROMPT)


def test_generator_matches_its_published_values() -> None:
    weights = deterministic(TINY)
    assert fnv1a("lm_head.weight") == 0xAB67EB515E1B6F0D
    for name, values in {
        "model.embed_tokens.weight": [-0.79067965, -0.257419053, -0.359963603],
        "lm_head.weight": [-0.118592309, 0.174224062],
        "model.layers.0.linear_attn.A_log": [0.565762209, -0.315681392],
    }.items():
        found = weights.rows(name, 0, min(2, weights.shape(name)[0])).ravel()[: len(values)]
        np.testing.assert_allclose(found, values, rtol=0, atol=6e-10)


@FORMS
@pytest.mark.parametrize(
    ("row", "token", "best", "best_logits", "first_logits", "total"),
    [
        (0, 5, (263, 172, 134), (3.134439, 2.610783, 2.544527),
         (-0.455175, 0.854497, 0.412512, 0.040039), 242.25261),
        (1, 25, (215, 292, 117), (2.767247, 2.610529, 2.548263),
         (0.194403, -0.835381, -0.459427, -0.297782), 250.03852),
        (23, 203, (192, 137, 252), (2.929486, 2.711979, 2.514329),
         (-0.816771, 0.238260, 0.391029, 0.693445), 256.32296),
        (47, 229, (106, 147, 6), (2.993273, 2.642050, 2.100758),
         (1.296903, 0.702566, 1.518581, -0.235184), 242.41346),
    ],
)
def test_logits(
    chunk: int | None, row: int, token: int, best: tuple[int, ...],
    best_logits: tuple[float, ...], first_logits: tuple[float, ...], total: float,
) -> None:
    _, out = prompt_run(chunk)
    logits = out.logits[row]
    assert PROMPT[row] == token
    assert tuple(np.argsort(-logits)[:3]) == best
    np.testing.assert_allclose(logits[list(best)], best_logits, rtol=0, atol=DIGITS)
    np.testing.assert_allclose(logits[:4], first_logits, rtol=0, atol=DIGITS)
    assert np.abs(logits).sum() == pytest.approx(total, abs=6e-6)


@FORMS
@pytest.mark.parametrize(
    ("layer", "norm", "first", "inner", "newest"),
    [
        (0, 4.790186, (0.096832, -0.034009, -0.003561), 0.000841, 0.109324),
        (1, 7.633230, (0.000035, -0.007415, 0.003541), -0.093898, 0.662654),
        (2, 6.343846, (0.009014, 0.002454, 0.007958), -0.040278, 1.480594),
        (4, 8.434042, (0.256587, 0.388080, 0.297411), -0.682083, 0.776097),
        (5, 6.588498, (-0.075342, -0.062643, 0.087078), 0.010009, 0.155148),
        (6, 8.904044, (-0.037681, -0.005031, 0.005611), 0.001879, -0.519225),
    ],
)
def test_delta_states(
    chunk: int | None, layer: int, norm: float, first: tuple[float, ...], inner: float,
    newest: float,
) -> None:
    state = prompt_run(chunk)[1].state.layers[layer]
    assert isinstance(state, DeltaState)
    assert np.linalg.norm(state.matrix) == pytest.approx(norm, abs=DIGITS)
    np.testing.assert_allclose(state.matrix[0, 0, :3], first, rtol=0, atol=DIGITS)
    assert state.matrix[5, 1, 2] == pytest.approx(inner, abs=DIGITS)
    assert state.conv[2, 0] == pytest.approx(newest, abs=DIGITS)


@pytest.mark.parametrize(
    ("layer", "k_norm", "v_norm", "last_key"),
    [
        (3, 39.219367, 38.475073, (1.225806, -1.477215, -0.888018)),
        (7, 37.449068, 39.677015, (1.100999, 0.955314, -1.400408)),
    ],
)
def test_key_value_caches(
    layer: int, k_norm: float, v_norm: float, last_key: tuple[float, ...]
) -> None:
    cache_rows = prompt_run(None)[1].state.layers[layer]
    assert isinstance(cache_rows, KvRows)
    assert np.linalg.norm(cache_rows.k) == pytest.approx(k_norm, abs=DIGITS)
    assert np.linalg.norm(cache_rows.v) == pytest.approx(v_norm, abs=DIGITS)
    np.testing.assert_allclose(cache_rows.k[47, 0, :3], last_key, rtol=0, atol=DIGITS)


@FORMS
def test_greedy_continuation(chunk: int | None) -> None:
    model, _ = prompt_run(chunk)
    found = model.greedy(PROMPT, 12)
    assert found.ids == CONTINUATION
    assert min(found.margins) == pytest.approx(0.006, abs=5e-4)


def test_mtp_draft_logits() -> None:
    model, out = prompt_run(None)
    found = model.mtp(out.hidden, [*PROMPT[1:], 106])
    for row, first_logits, best in (
        (0, (-0.647533, -0.106152, 1.159376, -0.605135), 318),
        (23, (1.264712, 0.509790, 0.435829, -0.477766), 43),
        (47, (0.194026, -0.095575, -1.282427, -0.037423), 32),
    ):
        np.testing.assert_allclose(found.logits[row, :4], first_logits, rtol=0, atol=DIGITS)
        assert model.best(found.logits[row])[0] == best
    assert found.kv.n_tokens == 48


def test_recursive_drafting() -> None:
    model, out = prompt_run(None)
    rows = model.mtp(out.hidden[:47], PROMPT[1:]).kv
    draft = model.draft(out.hidden[47], 106, rows, position=47, depth=3)
    assert draft.ids == [32, 9, 60]
    third = (-1.021334, -0.382505, -0.301500, -0.096804)
    np.testing.assert_allclose(draft.logits[2, :4], third, rtol=0, atol=DIGITS)
    assert draft.kv.n_tokens == 50
