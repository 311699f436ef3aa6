"""The hybrid through the engine: the specification's golden values (section 13), also on a device
whose fresh memory is poisoned, and the oracle's whole state."""

import numpy as np
import pytest

from engine import recurrent_codec, transfer
from engine.chunks import Work
from engine.evaluate import evaluate
from engine.records import ModelPlan
from engine.session import Session
from reference.config import TINY
from reference.hybrid import Hybrid
from reference.state import DeltaState, KvRows
from reference.synthetic import deterministic
from tests.hybrid_model import Judge, export, greedy, opened, parts_of, plan

__all__ = ["plan"]

PROMPT = [(7 * t * t + 13 * t + 5) % 317 for t in range(48)]
CONTINUATION = [106, 189, 39, 319, 229, 106, 292, 69, 278, 116, 272, 265]
# float32 against float64 over eight layers; the golden digits end at 1e-6.
CLOSE = 1e-4


@pytest.fixture(params=[False, True], ids=["zeroed", "poisoned"])
def session(plan: ModelPlan, request: pytest.FixtureRequest) -> Session:
    return opened(plan, n_lanes=2, poison=request.param).create_session()


def test_logits(session: Session) -> None:
    rows = evaluate(session.model, [Work(session, PROMPT, "all")]).rows[0]
    for row, best, best_logits, first_logits, total in (
        (0, (263, 172, 134), (3.134439, 2.610783, 2.544527),
         (-0.455175, 0.854497, 0.412512, 0.040039), 242.25261),
        (1, (215, 292, 117), (2.767247, 2.610529, 2.548263),
         (0.194403, -0.835381, -0.459427, -0.297782), 250.03852),
        (23, (192, 137, 252), (2.929486, 2.711979, 2.514329),
         (-0.816771, 0.238260, 0.391029, 0.693445), 256.32296),
        (47, (106, 147, 6), (2.993273, 2.642050, 2.100758),
         (1.296903, 0.702566, 1.518581, -0.235184), 242.41346),
    ):
        logits = rows[row]
        assert tuple(np.argsort(-logits)[:3]) == best
        np.testing.assert_allclose(logits[list(best)], best_logits, rtol=0, atol=CLOSE)
        np.testing.assert_allclose(logits[:4], first_logits, rtol=0, atol=CLOSE)
        assert np.abs(logits).sum() == pytest.approx(total, abs=320 * CLOSE)


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
    session: Session, layer: int, norm: float, first: tuple[float, ...], inner: float,
    newest: float,
) -> None:
    session.prefill(PROMPT)
    arrays = recurrent_codec.decode(session.model, transfer.export_recurrent(session)).arrays
    delta = arrays[f"delta.{layer}"]
    assert np.linalg.norm(delta) == pytest.approx(norm, abs=CLOSE)
    np.testing.assert_allclose(delta[0, 0, :3], first, rtol=0, atol=CLOSE)
    assert delta[5, 1, 2] == pytest.approx(inner, abs=CLOSE)
    assert arrays[f"conv.{layer}"][2, 0] == pytest.approx(newest, abs=CLOSE)


@pytest.mark.parametrize(
    ("layer", "k_norm", "v_norm", "last_key"),
    [
        (3, 39.219367, 38.475073, (1.225806, -1.477215, -0.888018)),
        (7, 37.449068, 39.677015, (1.100999, 0.955314, -1.400408)),
    ],
)
def test_key_value_rows(
    session: Session, layer: int, k_norm: float, v_norm: float, last_key: tuple[float, ...]
) -> None:
    session.prefill(PROMPT)
    cells = session.cells.cells()[: len(PROMPT)]
    k_rows, v_rows = (session.model.program.read_rows(layer, which, cells) for which in range(2))
    assert np.linalg.norm(k_rows) == pytest.approx(k_norm, abs=CLOSE)
    assert np.linalg.norm(v_rows) == pytest.approx(v_norm, abs=CLOSE)
    np.testing.assert_allclose(k_rows[47, 0, :3], last_key, rtol=0, atol=CLOSE)


def test_greedy_continuation(session: Session) -> None:
    first = session.prefill_sampled(PROMPT, None)
    assert [first, *greedy(session, first, 11)] == CONTINUATION


def test_exported_arrays_are_the_oracles_state(session: Session) -> None:
    session.prefill(PROMPT)
    state = Hybrid(deterministic(TINY), TINY).forward(PROMPT).state
    arrays = recurrent_codec.decode(session.model, transfer.export_recurrent(session)).arrays
    cells = session.cells.cells()[: len(PROMPT)]
    for index, layer in enumerate(state.layers):
        if isinstance(layer, KvRows):
            pairs = [(session.model.program.read_rows(index, which, cells), wanted)
                     for which, wanted in enumerate((layer.k, layer.v))]
        else:
            assert isinstance(layer, DeltaState)
            pairs = [(arrays[f"conv.{index}"], layer.conv),
                     (arrays[f"delta.{index}"], layer.matrix)]
        for found, wanted in pairs:
            np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE)


def test_poison_changes_no_bit(session: Session, plan: ModelPlan) -> None:
    """Nothing is read before it is written: not in a lane's first use, nor behind an import."""
    session.prefill(PROMPT)
    assert (export(session), greedy(session, 9, 4)) == Judge(plan)(PROMPT)
    other = session.model.create_session()
    other.prefill(PROMPT[:5])
    transfer.import_full_state(other, transfer.export_full_state(session))
    assert parts_of(other) == parts_of(session)
