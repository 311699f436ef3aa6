"""Protects the parity tool: right models pass against the oracle, planted faults are found where
they are, what could not run is said, and its bounds come from the peer alone.

With transformers as the peer: `tests/control/test_parity_transformers.py`. Long because the rules,
the runs and the numbers that peers are given are each judged.
"""

import gc
import json
import weakref
from dataclasses import fields

import numpy as np
import pytest

from engine.parity import command, judge, oracle, ours, texts, theirs, values
from engine.parity.records import PeerFailure
from engine.parity.report import markdown
from engine.parity.setting import kept_of
from packages.qwen3_8_27b import PACKAGE
from packages.qwen3_8_27b.stated import check_config, config_json
from packages.synthetic import HEAD, TABLE, synthetic_plan
from ptx.dequantise_int4_tiles.op import OP as DEQUANTISE_INT4_TILES
from ptx.devices.emulator import EmulatorDevice
from ptx.weight_tiles import untile
from reference.config import Config
from tests import parity_runs, rungs

HEADINGS = (
    "# Parity", "## Activations and logits", "## Layers and logits", "## Greedy ids", "## NLL",
    "## Not run", "## Seconds",
)

# As little as has every part.
TINY = ("--recipe", "groupwise-int", "--prompts", "2", "--tokens", "2", "--nll-tokens", "12")


def no_torch(device):
    raise PeerFailure("transformers is not here: no torch")


@pytest.fixture(scope="module")
def right():
    return parity_runs.compared("--recipe", "groupwise-int", "--peer", "oracle")


@pytest.fixture(scope="module")
def once():
    """Our side of a run in bf16, which does not depend on the peer."""
    return command.said_of(parity_runs.setting("--nll-windows", "0"))


@pytest.fixture
def judged(once):
    """The report of that side beside a peer."""
    return lambda *more: command.judged(parity_runs.setting("--nll-windows", "0", *more), once)


# Whole runs


def test_a_right_model_is_within_every_bound(right):
    assert parity_runs.failed(right) == []
    assert right["code"] == command.PASSED
    # Nearer to float32 than a path that rounds as transformers does.
    for row in (*right["layers"][1:], right["logits"]):
        assert row["error_to_float32"] < 0.8 * row["peer_to_float32"], row
    assert right["greedy"]["ids"] == 32
    assert right["greedy"]["sure"] > 16
    assert right["not_run"] == []


def test_integers_cost_nats_that_the_report_names(right):
    nll = right["nll"]
    assert nll["ours"] - nll["ours_bf16"] == pytest.approx(nll["difference"])
    assert 0.001 < abs(nll["difference"]) < 0.5
    assert nll["ours"] == pytest.approx(nll["peer"], abs=0.02)


def test_the_text_has_every_part(right):
    text = markdown(right)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        f"# Parity of {right['package']}, recipe {right['recipe']}", *HEADINGS[1:]
    ]
    assert "within every bound" in text
    assert json.loads(json.dumps(right)) == right


def test_a_spoiled_weight_is_found_in_its_layer(monkeypatch, judged):
    spoiled = parity_runs.Spoiled("model.layers.2.mlp.down_proj.weight", 1.04)
    monkeypatch.setattr(oracle, "pieces", spoiled)
    report = judged("--peer", "oracle")
    rows = {row["place"]: row for row in report["layers"]}
    assert not rows["layer 2"]["alone_passed"]
    assert all(rows[f"layer {i}"]["alone_passed"] for i in (0, 1, 3))
    assert report["code"] == command.FAILED


def test_a_position_that_is_off_by_one_while_decoding_is_found(monkeypatch):
    monkeypatch.setattr(ours, "ReferenceHost", parity_runs.LateHost)
    report = parity_runs.compared("--peer", "oracle", "--nll-windows", "0")
    # The twin's only layer of attention.
    assert parity_runs.failed(report) == ["layer 3", "logits"]
    assert report["code"] == command.FAILED


def test_another_model_says_other_ids(monkeypatch, judged):
    monkeypatch.setattr(oracle, "pieces", parity_runs.Spoiled("model.embed_tokens.weight", -1.0))
    report = judged("--peer", "oracle")
    assert report["greedy"]["wrong"] > 16
    assert {"prompt", "step", "ours", "theirs", "lead"} <= report["greedy"]["first_wrong"][0].keys()
    assert not report["logits"]["passed"]
    assert f"{report['greedy']['wrong']} are wrong: **fails**" in markdown(report)


def test_without_torch_the_oracle_judges_small_models_and_the_report_says_so(monkeypatch, judged):
    monkeypatch.setattr(theirs, "libraries", no_torch)
    report = judged()
    assert report["peer"].startswith("the oracle")
    assert "transformers is not here: no torch" in report["not_run"]
    assert report["code"] == command.PASSED


def test_without_any_peer_nothing_is_judged(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(theirs, "libraries", no_torch)
    monkeypatch.setattr(oracle, "MAX_CELLS", 1000)
    path = tmp_path / "parity.json"
    arguments = [*parity_runs.SMALL, *TINY, "--json", str(path)]
    assert command.main(arguments) == command.NOT_JUDGED
    said = capsys.readouterr().out
    assert "not judged" in said
    assert "weights, at most 1000" in said
    report = json.loads(path.read_text())
    assert "layers" not in report
    # Ours alone can still say what integers cost.
    assert report["nll"]["difference"] != 0
    assert command.main(["--package", "qwen3_8_27b:none", "--device", "host"]) == 2


def test_our_memory_is_given_back_before_anything_else_is_built(monkeypatch):
    held, opened = [], ours.opened

    def noted(*args):
        found.append([program() for program in held])
        model = opened(*args)
        held.append(weakref.ref(model.program))
        return model

    def peer(device, plan, document):
        found.append([program() for program in held])
        raise PeerFailure("seen enough")

    found = []
    monkeypatch.setattr(ours, "opened", noted)
    monkeypatch.setattr(command, "Transformers", peer)
    gc.disable()
    try:
        parity_runs.compared("--peer", "transformers", *TINY)
    finally:
        gc.enable()
    # The model that draws texts, the judged one, the peer.
    assert found == [[], [None], [None, None]]


# What peers are given


@pytest.mark.parametrize("recipe", ["bf16", "groupwise-int"])
def test_a_peer_gets_the_numbers_that_our_kernels_multiply_with(recipe):
    device = ours.ReferenceHost()
    plan = synthetic_plan("qwen3_8_27b:mini", recipe=recipe)
    model = ours.opened(plan, device, [16])
    for name, matrix in plan.compiled.matrices.items():
        if name == "head" and recipe != "bf16":
            continue
        given = np.concatenate([
            values.decoded(piece)
            for part in matrix.parts for piece in values.pieces(device, plan, part)
        ])
        held = model.program._passes._fixed[name]
        if matrix.form == "int4_tiles":
            rows = device.allocate(given.shape, "bf16", name)
            device.launch(DEQUANTISE_INT4_TILES, w=held, y=rows)
            held, form = rows, "bf16"
        else:
            form = matrix.form
        want = held if form == "f32" else values.widen_bf16(held)
        assert given.tobytes() == want.tobytes(), name


def test_a_peer_gets_the_codes_of_the_head():
    device = ours.ReferenceHost()
    plan = synthetic_plan("qwen3_8_27b:mini", recipe="groupwise-int")
    codes, scales = untile("int8", ours.opened(plan, device, [16]).program._passes._fixed["head"])
    (piece,) = values.pieces(device, plan, "lm_head.weight")
    assert piece.form == "int8_tiles"
    assert piece.stored.cells.tobytes() == codes.tobytes()
    assert piece.stored.scales.tobytes() == scales.tobytes()


@pytest.mark.parametrize("name", [
    "model.layers.0.linear_attn.in_proj_a.weight", "model.layers.0.linear_attn.dt_bias",
    "model.layers.3.self_attn.k_proj.weight",
])
def test_a_device_with_kernels_makes_the_same_numbers(name):
    plan = synthetic_plan("qwen3_8_27b:mini", recipe="groupwise-int")
    found, want = (
        list(values.pieces(device, plan, name))
        for device in (EmulatorDevice(target="sm_90a"), ours.ReferenceHost())
    )
    for one, other in zip(found, want, strict=True):
        assert one[:3] == other[:3]
        assert values.decoded(one).tobytes() == values.decoded(other).tobytes()


@pytest.mark.parametrize("twin", ["", "tiny", "mini"])
def test_the_config_is_the_packages_and_the_oracles(twin):
    dims = PACKAGE.dims[twin]
    document = config_json(dims)
    check_config(document, "config.json", dims, "qwen3_8_27b")
    read, want = Config.from_json(document), rungs.config_of(dims)
    # Which ids exist is not in the file, nor are drafts.
    for name in {f.name for f in fields(Config)} - {"n_vocab_real", "n_mtp"}:
        assert getattr(read, name) == getattr(want, name), name


# Random weights


def test_random_weights_lead_like_a_trained_models(right):
    plan = synthetic_plan("qwen3_8_27b:mini")
    head, table = (plan.weights[name].load() for name in (HEAD, TABLE))
    step = len(head) // 4
    # A row of the head points where the row of an id further on does.
    cosine = (head[:-step] * table[step:]).sum(1)
    cosine /= np.linalg.norm(head[:-step], axis=1) * np.linalg.norm(table[step:], axis=1)
    assert cosine.min() > 0.9999
    seen = right["activations"]
    assert 1 < seen["lead_percentiles"]["50"] < 10
    assert 0.3 < seen["entropy_nats"] < 3
    assert 3 < seen["logit_deviation"] < 5
    assert 0.4 < seen["stream"][-1]["rms"] < 2


# Rules


def test_errors_are_of_the_whole_and_of_the_worst_row():
    want = np.ones((4, 8), np.float32)
    found = want.copy()
    found[2] += 0.1
    assert judge.error(found, want) == pytest.approx((0.05, 0.1), rel=1e-5)
    assert judge.error(want, want) == (0.0, 0.0)
    assert judge.error(np.full_like(want, np.nan), want) == (np.inf, np.inf)
    assert judge.error(want, np.zeros_like(want)) == (np.inf, np.inf)


def test_ours_is_judged_by_the_peers_noise_alone():
    rng = np.random.default_rng(5)
    truth = rng.standard_normal((24, 64)).astype(np.float32)

    def near(by):
        return truth + np.float32(by) * rng.standard_normal(truth.shape).astype(np.float32)

    theirs_ = {"plain": near(0.01), "other": near(0.01), "wide": truth}
    assert judge.judge_place("here", near(0.01), theirs_)["passed"]
    assert not judge.judge_place("here", near(0.04), theirs_)["passed"]
    one_row = near(0.005)
    one_row[7] = near(0.08)[7]
    assert not judge.judge_place("here", one_row, theirs_)["passed"]
    assert not judge.judge_place("here", np.full_like(truth, np.nan), theirs_)["passed"]


def test_ids_are_equal_near_or_wrong():
    rows = np.zeros((4, 6), np.float32)
    rows[:, 2] = 5.0
    rows[1, 3] = 4.9
    found = judge.judge_ids(rows, rows, [2, 3, 4, 2], noise=0.02, prompt=7)
    assert (found["equal"], found["near_ties"], found["wrong"], found["sure"]) == (2, 1, 1, 3)
    assert found["first_wrong"][0]["step"] == 2
    assert not judge.judge_all_ids([found])["passed"]
    right = judge.judge_ids(rows, rows, [2, 2, 2, 2], noise=0.02, prompt=0)
    assert judge.judge_all_ids([right])["passed"]
    # Nothing is sure where noise covers every lead: then equal ids say nothing.
    assert not judge.judge_all_ids([judge.judge_ids(rows, rows, [2] * 4, 1.0, 0)])["passed"]
    broken = np.where(np.arange(4)[:, None] == 3, np.nan, rows)
    assert judge.judge_ids(broken, rows, [2] * 4, 0.02, 0)["wrong"] == 1


def test_nll_is_that_of_the_softmax_and_its_mean_and_spread_are_bound():
    rng = np.random.default_rng(3)
    rows = 4 * rng.standard_normal((40, 50)).astype(np.float32)
    targets = rng.integers(0, 50, 40)
    wide = rows.astype(np.float64)
    want = np.log(np.exp(wide).sum(1)) - wide[np.arange(40), targets]
    np.testing.assert_allclose(judge.nll_of(rows, targets), want, rtol=0, atol=1e-6)
    noise = 0.05 * rng.standard_normal((2, 40))
    assert judge.judge_nll(want + noise[0], want + noise[1], want)["passed"]
    assert not judge.judge_nll(want + noise[0] + 0.1, want + noise[1], want)["passed"]
    assert not judge.judge_nll(want + 5 * noise[0], want + noise[1], want)["passed"]


def test_texts_are_fixed_and_cover_every_kind_of_pass():
    assert texts.parts_of(256) == [240, 8, *[1] * 8]
    assert [sum(texts.parts_of(n)) for n in (1, 3, 40, 300)] == [1, 3, 40, 300]
    made = texts.prompts(8, 1021)
    assert [len(prompt) for prompt in made] == list(texts.LENGTHS)
    assert made[1][:5] == made[1][5:10]
    assert len(set(made[2])) > 12
    assert made == texts.prompts(8, 1021)
    assert texts.random_ids(4, 1021, 1) == [218, 732, 577, 698]


def test_layers_that_are_compared_are_spread_evenly():
    assert kept_of(None, 4) == [0, 1, 2, 3, 4]
    assert kept_of(1, 64) == [0, 63, 64]
    assert kept_of(2, 64) == [0, 31, 32, 63, 64]
    assert kept_of(99, 3) == [0, 1, 2, 3]


def test_texts_are_drawn_by_the_model_each_with_a_seed_of_its_own():
    plan = synthetic_plan("qwen3_8_27b:mini", recipe="bf16")
    first, again = (
        ours.sampled(ours.opened(plan, ours.ReferenceHost(), [24] * 2), 2, 24) for _ in range(2)
    )
    assert first == again
    assert [len(text) for text in first] == [24, 24]
    assert first[0][1:] != first[1][1:]
    model = ours.opened(plan, ours.ReferenceHost(), [24])
    session = model.create_session()
    greedy = [session.decode(token, None) for token in first[0][:-1]]
    assert greedy != first[0][1:]
