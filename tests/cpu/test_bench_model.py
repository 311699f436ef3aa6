"""Protects the model benchmark: what it reports, not how fast anything is."""

import json

import pytest

from engine import bench

ARGUMENTS = [
    "model", "--package", "qwen3_8_27b:mini", "--device", "host", "--cells", "256",
    "--contexts", "0,20", "--prompts", "24", "--batches", "1,3", "--steps", "2",
]


def test_a_report_has_every_part(tmp_path, capsys):
    path = tmp_path / "model.json"
    assert bench.main([*ARGUMENTS, "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert json.loads(capsys.readouterr().out) == report
    assert [row["n_tokens"] for row in report["prefill"]] == [24]
    assert [row["n_context"] for row in report["decode"]] == [0, 20]
    assert [row["n_batch"] for row in report["batch"]] == [1, 3]
    rates = [row["tokens_per_s"] for part in ("prefill", "decode", "batch") for row in report[part]]
    assert all(rate > 0 for rate in rates)
    assert report["recipe"] == "groupwise-int"


def test_its_name_comes_first(capsys):
    with pytest.raises(SystemExit):
        bench.main(["--package", "smollm2_135m", "model"])
    assert "model comes first" in capsys.readouterr().err
