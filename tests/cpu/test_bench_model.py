"""Protects the model benchmark: what it reports, how it goes on, and its bars; not how fast
anything is. Long because every phase of one report is looked at.
"""

import ctypes
import json
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from engine import bench
from engine.bench_model import command, passes, run
from engine.bench_model.bars import judge
from engine.bench_model.record import LISTS
from engine.bench_model.step_bytes import Shape, groups_of, must_read, total
from engine.bench_ops import ceilings
from engine.model import Model
from engine.options import RuntimeOptions
from packages.synthetic import synthetic_plan
from ptx.devices.cuda import CudaDevice
from ptx.devices.host import HostDevice
from tests import compiled_hybrid as mini
from tests.cpu.bench_ops_cases import HOSTILE
from tests.cpu.fake_cuda import FakeCuda

ARGUMENTS = [
    "model", "--package", "qwen3_8_27b:mini", "--device", "host", "--cells", "256",
    "--contexts", "0,20", "--prompts", "24", "--batches", "1,3", "--steps", "2",
    "--tables", "1@0,2@8", "--table-prompt", "24",
]


def measured(tmp_path, *more):
    path = tmp_path / "model.json"
    status = bench.main([*ARGUMENTS, "--json", str(path), *more])
    return status, json.loads(path.read_text())


def without_run(rows):
    return [{key: value for key, value in row.items() if key != "run"} for row in rows]


def entry_of(device):
    return SimpleNamespace(
        name="CUDA0", description=device.description, device=device, memory_info=device.memory_info
    )


@pytest.fixture
def card(monkeypatch):
    """A stand-in with room for the mini twin; its kernels do nothing but encode without a fault."""
    bindings = FakeCuda(1 << 30)

    def encode(w, codes, scales, bad, *_):
        ctypes.memset(bad, 255, len(bindings.memory[bad]) - 256)

    bindings.kernels |= {"encode_int4_group128": encode, "encode_int8_group": encode}
    device = CudaDevice(bindings=bindings)
    monkeypatch.setattr(run, "find", lambda name: entry_of(device))
    monkeypatch.setattr(command, "find", run.find)
    monkeypatch.setattr(ceilings, "SIZES", (1 << 20,))
    return device


# The report


def test_a_report_has_every_part(tmp_path, capsys):
    files = {kind: tmp_path / f"model.{kind}" for kind in ("svg", "markdown")}
    more = [part for kind, path in files.items() for part in (f"--{kind}", str(path))]
    status, report = measured(tmp_path, *more)
    assert status == 0
    assert set(LISTS) < set(report)
    assert [row["n_tokens"] for row in report["prefill"]] == [24]
    assert [row["n_context"] for row in report["decode"]] == [0, 20]
    assert [row["n_batch"] for row in report["batch"]] == [1, 3]
    assert [row["shape"] for row in report["steps"]] == ["1@0", "2@8", "prompt@24"]
    rates = [row["tokens_per_s"] for part in ("prefill", "decode", "batch") for row in report[part]]
    assert all(rate > 0 for rate in rates)
    assert report["identity"]["recipe"] == "groupwise-int"
    assert report["model"]["weights"] == "int4"
    text = files["markdown"].read_text()
    assert capsys.readouterr().out.rstrip() == text.rstrip()
    for title in ("Load", "Memory", "Prompts", "Decoding in batches", "1@0", "prompt@24"):
        assert title in text
    assert "Failed" not in text
    assert ElementTree.parse(files["svg"]).getroot().tag.endswith("svg")


def test_a_device_that_captures_nothing_has_no_times_of_ops(tmp_path):
    _, report = measured(tmp_path, "--phases", "steps")
    assert report["decode"] == report["prefill"] == []
    table = report["steps"][0]
    assert table["step_us"] is None
    assert {op["us"] for op in table["ops"]} == {None}
    assert {op["op"]: op["launches"] for op in table["ops"]}["gated_delta_step"] == 3
    assert table["read_bytes"] == sum(
        op["weights_bytes"] + op["kv_bytes"] + op["state_bytes"] for op in table["ops"]
    )


def test_the_pool_has_the_cells_that_phases_need():
    options = SimpleNamespace(
        phases=["prefill", "batch"], prompts=[24, 512], contexts=[8192], batches=[1, 8],
        tables=[(8, 1000)], table_prompt=2048, steps=32,
    )
    # 8 sessions of 64 tokens, one more, two that warm up, and 32 steps: 792 cells, in pages of 16.
    assert (run.cells_for(options), run.lanes_for(options)) == (800, 8)
    options.phases = ["decode", "steps"]
    assert run.cells_for(options) == 8240
    options.phases = ["load"]
    assert (run.cells_for(options), run.lanes_for(options)) == (16, 1)


def test_its_name_comes_first(capsys):
    with pytest.raises(SystemExit):
        bench.main(["--package", "smollm2_135m", "model"])
    assert "model comes first" in capsys.readouterr().err


def test_a_command_names_no_folder():
    shown = command.shown_command(["--model", "/a/b/c d.mspec", "--phases", "load"])
    assert shown == "python -m engine.bench model --model 'c d.mspec' --phases load"


def test_an_artifact_is_loaded_from_the_page_cache(tmp_path, monkeypatch):
    path = mini.write(tmp_path / "mini.mspec", "groupwise-int")
    monkeypatch.setattr(run, "plan_of", lambda package, recipe, model: mini.plan_of(model))
    status, report = measured(tmp_path, "--phases", "load", "--model", str(path))
    (row,) = report["load"]
    assert (status, row["source"], row["file_bytes"]) == (0, "page cache", path.stat().st_size)
    assert row["load_s"] > row["plan_s"] > 0
    assert row["bytes_per_s"] == pytest.approx(row["file_bytes"] / row["load_s"])
    assert report["identity"]["artifact"] == "mini.mspec"
    status, report = measured(tmp_path, "--phases", "load", "--model", str(tmp_path / "gone"))
    assert status == 1
    assert "gone: cannot be read: No such file" in report["failed"][0]["reason"]


# On a card of paper


def test_a_card_has_times_that_sum_up(tmp_path, card):
    status, report = measured(tmp_path, "--device", "cuda")
    assert status == 0
    assert report["runs"][0]["read_rate"] == pytest.approx((1 << 20) / 1.5e-3)
    for table in report["steps"]:
        assert table["step_us"] == 1500
        assert table["sum_us"] == pytest.approx(sum(op["us"] for op in table["ops"]))
        # Every replay takes 1.5 ms there, whatever is in it.
        assert [op["us"] for op in table["ops"]] == pytest.approx([1500] * len(table["ops"]))
        assert all(op["kernels"] for op in table["ops"])
    assert [row["device_ms"] for row in report["decode"]] == [1.5, 1.5]
    row = report["decode"][0]
    assert row["host_us_per_token"] == pytest.approx(1e3 * (row["step_ms"] - 1.5))
    memory, = report["memory"]
    assert memory["most_bytes"] >= memory["taken_bytes"] >= memory["weights_bytes"]
    assert memory["beyond_bytes"] == (
        memory["most_bytes"] - memory["weights_bytes"] - memory["state_bytes"]
    )


def test_a_cards_memory_is_free_again_for_the_peer(tmp_path, card, monkeypatch):
    seen, before = [], card.memory_info().free_bytes

    def measure(*_):
        seen.append(card.memory_info().free_bytes)
        return {"peer": "llama-bench", "seconds": 1.0, "results": [
            {"n_prompt": 24, "n_gen": 0, "n_depth": 0, "tokens_per_s": 100.0, "stddev": 1.0,
             "build": "b", "model": HOSTILE, "card": HOSTILE},
        ]}

    monkeypatch.setattr(run.peer, "measure", measure)
    status, report = measured(tmp_path, "--device", "cuda", "--peer-bench", "b", "--peer-model",
                              "g", "--phases", "prefill,peer", "--markdown", str(tmp_path / "m"))
    assert status == 0
    assert seen == [before]
    ours = report["prefill"][0]["tokens_per_s"]
    assert f"| prompt 24 | 0 | 100.0 | 1.0 | {ours:,.1f} | {ours / 100:.0%} |" in (
        (tmp_path / "m").read_text()
    )


def test_the_launches_of_a_pass_compute_it_again():
    model = mini.model_of(synthetic_plan("qwen3_8_27b:mini"))
    session = model.create_session()
    for tokens in (list(range(20)), [3]):
        session.prefill_sampled(tokens, None)
        row = session.last_row.array().copy()
        device, launches = model.program._device, model.program.launches(len(tokens), 1)
        # The buffers that logits come in by turns are not told apart here.
        head = launches[-1][1]["logits"]
        head.fill(0)
        for step, args in launches:
            device.launch(step.op, **args)
        again = head[0, : model.plan.n_vocab]
        if len(tokens) == 1:
            assert again.tobytes() == row.tobytes()
        assert session.last_row.array().tobytes() == row.tobytes()


def test_sessions_grow_to_a_context_or_start_again():
    model = Model(synthetic_plan("qwen3_8_27b:tiny"), RuntimeOptions(n_lanes=2), HostDevice())
    with passes.sessions_of(model, 2) as sessions:
        for n_context in (4, 9, 9, 3):
            passes.bring(model, sessions, n_context)
            assert [session.position for session in sessions] == [n_context + 1] * 2
        want = passes.prompt_of(4, model.plan.n_vocab, 1)
        assert sessions[1].history == want
        sessions[0].needs_reset = True
        passes.bring(model, sessions, 5)
        assert sessions[0].history == passes.prompt_of(6, model.plan.n_vocab)
    assert model.sessions() == []


# Bytes


@pytest.mark.parametrize(("recipe", "gb"), [("groupwise-int", 13.89), ("bf16", 51.26)])
def test_bytes_of_the_27b(recipe, gb):
    plan = synthetic_plan("qwen3_8_27b", recipe=recipe)
    near, far = Shape(1, 1, 1), Shape(1, 1, 8193)
    moved = total(groups_of(plan, near).values())
    assert moved.weights / 1e9 == pytest.approx(gb, abs=0.01)
    # 48 layers: 48 states of 128 x 128, and three rows of 10,240 channels, float32.
    assert moved.state == 48 * 4 * (48 * 128 * 128 + 3 * 10240)
    # 16 layers: K and V, 4 heads of 256, bf16.
    assert must_read(plan, far) - must_read(plan, near) == 8192 * 16 * 2 * 4 * 256 * 2
    eight = total(groups_of(plan, Shape(8, 8, 8)).values())
    assert eight.state == 8 * moved.state
    assert eight.weights - moved.weights == 7 * 2 * 5120
    assert sum(group.n_launches for group in groups_of(plan, near).values()) == 64 * 6 + 5


def test_a_prompts_rows_of_a_matrix_are_written_and_read():
    groups = groups_of(synthetic_plan("qwen3_8_27b"), Shape(2048, 1, 2048))
    made, used = groups["dequantise_int4_tiles (down)"], groups["linear_xbf16_bf16_add "
                                                                "(rows.5120x17408)"]
    assert made.moved.written == used.moved.weights == 64 * 2 * 5120 * 17408
    assert made.moved.weights == 64 * 5120 * 17408 * 528 // 1024
    assert groups["linear_xbf16_bf16 (ab)"].moved.weights == 48 * 2 * 2 * 48 * 5120
    inputs = groups["linear_xbf16_bf16 (rows.16384x5120)"]
    assert inputs.moved.weights == 48 * 2 * 16384 * 5120


# Going on


def test_a_run_goes_on_where_one_was_ended(tmp_path, monkeypatch):
    _, first = measured(tmp_path, "--phases", "prefill,decode", "--contexts", "0")
    path = str(tmp_path / "model.json")
    asked = []
    decode = run.decode

    def noted(model, device, sessions, n_context, n_steps):
        asked.append((len(sessions), n_context))
        return decode(model, device, sessions, n_context, n_steps)

    monkeypatch.setattr(run, "decode", noted)
    status, second = measured(tmp_path, "--resume", path, "--phases", "prefill,decode,batch")
    assert status == 0
    assert asked == [(1, 20), (1, 64), (3, 64)]
    assert second["prefill"] == first["prefill"]
    assert second["decode"][:1] == first["decode"]
    assert [row["run"] for row in second["decode"]] == [0, 1]
    assert len(second["runs"]) == 2
    status, third = measured(tmp_path, "--resume", path, "--phases", "none")
    assert (status, third) == (0, second)


def test_a_killed_run_keeps_its_rows(tmp_path, monkeypatch):
    def ended(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "decode", ended)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path)
    kept = json.loads((tmp_path / "model.json").read_text())
    assert [row["n_tokens"] for row in kept["prefill"]] == [24]
    assert kept["memory"]


def test_a_row_that_fails_leaves_the_others(tmp_path, monkeypatch):
    status, report = measured(tmp_path, "--contexts", "0,4000,20", "--phases", "decode,batch")
    assert status == 1
    assert [row["n_context"] for row in report["decode"]] == [0, 20]
    assert [row["n_batch"] for row in report["batch"]] == [1, 3]
    (failed,) = report["failed"]
    assert (failed["phase"], failed["key"]) == ("decode", 4000)
    assert "KV cache" in failed["reason"]


def test_a_failure_is_forgotten_once_it_is_measured(tmp_path):
    path = str(tmp_path / "model.json")
    measured(tmp_path, "--contexts", "300", "--phases", "decode")
    assert len(json.loads((tmp_path / "model.json").read_text())["failed"]) == 1
    status, report = measured(tmp_path, "--resume", path, "--contexts", "300", "--phases",
                              "decode", "--cells", "0")
    assert (status, report["failed"]) == (0, [])


@pytest.mark.parametrize(("content", "reason"), [
    ("{", "Expecting property name"),
    ("[]", "has schema None, 2 is needed"),
    ('{"schema": 1}', "has schema 1, 2 is needed"),
    ('{"schema": 2}', "lacks a part"),
    (json.dumps({"schema": 2, "identity": {}, **{name: [] for name in LISTS},
                 "decode": [{"n_tokens": 1}]}), "a row of decode has no n_context"),
    (json.dumps({"schema": 2, "identity": {"package": "other"}, **{name: [] for name in LISTS}}),
     "package is 'qwen3_8_27b:mini' here, 'other' in held.json"),
])
def test_what_cannot_be_taken_up_is_refused(tmp_path, capsys, content, reason):
    held = tmp_path / "held.json"
    held.write_text(content)
    assert bench.main([*ARGUMENTS, "--resume", str(held)]) == 2
    assert reason in capsys.readouterr().err
    assert held.read_text() == content


@pytest.mark.parametrize(("arguments", "reason"), [
    (["--phases", "decode,all"], "all: there are load, prefill"),
    (["--tables", "8"], "8: sessions@context is needed"),
    (["--contexts", "-1"], "a count below 0"),
    (["--peer-bench", "x"], "the peer needs both"),
    (["--svg", "gone/model.svg"], "model.svg: there is no folder gone"),
])
def test_wrong_options_are_named(capsys, arguments, reason):
    with pytest.raises(SystemExit):
        bench.main(["model", "--device", "host", *arguments])
    assert reason in capsys.readouterr().err


# Bars


def report_of(weights="int4", **changes):
    row = {"n_context": 0, "tokens_per_s": 200.0, "host_us_per_token": 20.0}
    return {
        "identity": {"is_card": True},
        "model": {"model_id": "Qwen/Qwen3.8-27B", "weights": weights},
        "load": [{"source": "page cache", "load_s": 9.0}],
        "prefill": [{"n_tokens": 2048, "tokens_per_s": 4000.0}],
        "decode": [{**row, "n_context": 8192, "tokens_per_s": 180.0}, row],
        "batch": [], "memory": [{"beyond_bytes": 3 << 29}], **changes,
    }


def test_bars_are_kept_missed_or_unknown():
    held = {one.bar.name: (one.value, one.holds, one.reaches_goal) for one in judge(report_of())}
    assert held == {
        "decode, short context": (200.0, True, False),
        "decode at 8,192, of the short context's": (0.9, False, None),
        "prefill of 2,048": (4000.0, False, False),
        "batch of 8": (None, None, None),
        "load from the page cache": (9.0, True, None),
        "memory beyond weights and state": (1.5, True, False),
        "host time a token": (20.0, True, False),
    }
    # A step that took less than its device time, measured next, says nothing of the host.
    moved = report_of(decode=[{"n_context": 0, "tokens_per_s": 70.0, "host_us_per_token": -226.0}])
    assert judge(moved)[-1].holds is None
    names = [(one.bar.name, one.bar.bar) for one in judge(report_of("bf16"))]
    assert ("decode, short context", 65.0) in names
    assert len(names) == 4
    long_only = judge(report_of(decode=[{"n_context": 8192, "tokens_per_s": 1.0}]))
    assert long_only[0].holds is None
    assert judge(report_of(identity={"is_card": False})) == []
    twin = {"model_id": "synthetic qwen3_8_27b:mini", "weights": "int4"}
    assert judge(report_of(model=twin)) == []


