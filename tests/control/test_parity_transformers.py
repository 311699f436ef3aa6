"""The parity tool beside transformers on the CPU: right weights pass by both recipes, faults fail.

Its rules and its other peer are judged without torch in `tests/cpu/test_parity.py`.
"""

import numpy as np
import pytest

from engine.parity import command, ours, theirs_model, values
from engine.parity.report import markdown
from packages.synthetic import synthetic_plan
from tests import parity_runs

torch = pytest.importorskip("torch", reason="the control extra is not installed")
pytest.importorskip("transformers", reason="the control extra is not installed")
pytest.importorskip(
    "transformers.models.qwen3_5.modeling_qwen3_5", reason="this transformers lacks qwen3_5"
)

pytestmark = pytest.mark.control


@pytest.fixture(scope="module")
def once():
    return command.said_of(parity_runs.setting("--nll-windows", "0"))


@pytest.mark.parametrize("recipe", ["bf16", "groupwise-int"])
def test_right_weights_are_within_every_bound(recipe):
    report = parity_runs.compared("--recipe", recipe, "--peer", "transformers")
    assert report["peer"].startswith("transformers ")
    assert parity_runs.failed(report) == []
    assert report["code"] == command.PASSED
    assert report["not_run"] == []
    for row in (*report["layers"][1:], report["logits"]):
        assert row["error_to_float32"] < 0.8 * row["peer_to_float32"], row
        assert 0 < row["floor"] < 0.03
    assert "transformers" in markdown(report)


@pytest.mark.parametrize(("name", "layer"), [
    ("model.layers.1.mlp.down_proj.weight", 1),
    ("model.layers.0.linear_attn.dt_bias", 0),
    ("model.layers.3.self_attn.v_proj.weight", 3),
])
def test_a_spoiled_weight_is_found_in_its_layer(monkeypatch, once, name, layer):
    monkeypatch.setattr(theirs_model, "pieces", parity_runs.Spoiled(name, 1.1))
    setting = parity_runs.setting("--nll-windows", "0", "--peer", "transformers")
    report = command.judged(setting, once)
    alone = [row["place"] for row in report["layers"] if not row.get("alone_passed", True)]
    assert alone == [f"layer {layer}"]
    assert report["code"] == command.FAILED


def test_a_position_that_is_off_by_one_while_decoding_is_found(monkeypatch):
    monkeypatch.setattr(ours, "ReferenceHost", parity_runs.LateHost)
    report = parity_runs.compared("--peer", "transformers", "--nll-windows", "0")
    assert parity_runs.failed(report)[0] == "layer 3"
    assert report["code"] == command.FAILED


def test_what_transformers_raises_is_said_and_nothing_is_judged(monkeypatch, once):
    monkeypatch.setattr(theirs_model, "_assign", lambda *_: None)
    setting = parity_runs.setting("--nll-windows", "0", "--peer", "transformers")
    report = command.judged(setting, once)
    assert "tensors of theirs got no numbers" in report["not_run"][-1]
    assert report["code"] == command.NOT_JUDGED


@pytest.mark.parametrize("recipe", ["bf16", "groupwise-int"])
def test_torch_decodes_as_we_do(recipe):
    device, plan = ours.ReferenceHost(), synthetic_plan("qwen3_8_27b:mini", recipe=recipe)
    seen = set()
    for name in plan.weights:
        for piece in values.pieces(device, plan, name):
            if piece.form not in seen:
                seen.add(piece.form)
                found = theirs_model.decoded(torch, "cpu", piece).float().numpy()
                np.testing.assert_array_equal(found, values.decoded(piece))
    assert len(seen) == {"bf16": 2, "groupwise-int": 4}[recipe]
