"""Protects the peer of the model benchmark: a program that prints what llama-bench prints, and
every way in which it may not."""

import json
import time

import pytest

from engine import bench
from engine.bench_model.peer import command_of, measure, parse
from engine.errors import RuntimeFailure

RESULT = {
    "build_commit": "abc1234", "gpu_info": "Card of Paper", "model_type": "qwen3 27B Q4_0",
    "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 5000.5, "stddev_ts": 12.0,
    "samples_ts": [5000.0, 5001.0],
}
DECODE = {**RESULT, "n_prompt": 0, "n_gen": 128, "avg_ts": 100.0}


@pytest.fixture
def program(tmp_path):
    """Writes a script in the place of the program."""

    def write(text):
        path = tmp_path / "llama-bench"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return write


def printing(text):
    return f"cat <<'END'\n{text}\nEND"


def test_what_it_prints_is_read(program, tmp_path):
    said = tmp_path / "arguments"
    path = program(f'echo "$@" > {said}\n{printing(json.dumps([RESULT, DECODE]))}\necho log >&2')
    row = measure(path, tmp_path / "m.gguf", [0, 8192], 30.0)
    assert row["peer"] == "llama-bench"
    assert row["seconds"] > 0
    assert row["results"][0] == {
        "n_prompt": 512, "n_gen": 0, "n_depth": 0, "tokens_per_s": 5000.5, "stddev": 12.0,
        "build": "abc1234", "model": "qwen3 27B Q4_0", "card": "Card of Paper",
    }
    assert row["results"][1]["n_gen"] == 128
    assert said.read_text().split() == [
        "-m", str(tmp_path / "m.gguf"), "-p", "512,2048", "-n", "128", "-ngl", "99", "-fa", "1",
        "-o", "json", "-d", "0,8192",
    ]
    assert "-d" not in command_of(path, path, [])


@pytest.mark.parametrize(("script", "reason"), [
    ("echo no such model >&2; exit 3", "ended with 3, 0 is needed; it said: no such model"),
    ("kill -SEGV $$", "ended with -11, 0 is needed"),
    ("echo warming up; echo [", "characters that are no JSON"),
    ("true", "0 characters that are no JSON"),
    ("head -c 17000000 /dev/zero", "printed 17000000 bytes, at most 16777216"),
])
def test_what_does_not_work_says_so(program, tmp_path, script, reason):
    with pytest.raises(RuntimeFailure, match=f"^llama-bench: .*{reason}"):
        measure(program(script), tmp_path / "m.gguf", [], 30.0)


def test_one_that_is_not_there(tmp_path):
    with pytest.raises(RuntimeFailure, match="cannot be started: No such file"):
        measure(tmp_path / "gone", tmp_path / "m.gguf", [], 30.0)


def test_one_that_hangs_is_ended_with_what_it_started(program, tmp_path):
    mark = tmp_path / "mark"
    path = program(f"(sleep 1; touch {mark}) &\nsleep 60")
    with pytest.raises(RuntimeFailure, match=r"not done after 0.3 s, which is the limit"):
        measure(path, tmp_path / "m.gguf", [], 0.3)
    # As long as the mark would have needed.
    time.sleep(1)
    assert not mark.exists()


@pytest.mark.parametrize(("rows", "reason"), [
    ({}, "printed dict, a list of 1 to 1000 is needed"),
    ([], "printed 0 results"),
    ([RESULT] * 1001, "printed 1001 results"),
    ([RESULT, 5], "result 1 is int, an object is needed"),
    ([{**RESULT, "avg_ts": "fast"}], "result 0: avg_ts is 'fast', a finite number"),
    ([{**RESULT, "avg_ts": float("nan")}], "avg_ts is nan"),
    ([{**RESULT, "avg_ts": 0}], "avg_ts is 0.0, above 0"),
    ([{**RESULT, "avg_ts": True}], "avg_ts is True"),
    ([{**RESULT, "stddev_ts": -1}], "stddev_ts is -1"),
    ([{**RESULT, "n_prompt": -1}], "n_prompt is -1, a number from 0"),
    ([{**RESULT, "n_gen": 1.5}], "n_gen is 1.5"),
    ([{**RESULT, "n_depth": 1 << 40}], "n_depth is 1099511627776"),
    ([{k: v for k, v in RESULT.items() if k != "n_gen"}], "n_gen is None"),
])
def test_a_wrong_value_is_named(rows, reason):
    with pytest.raises(RuntimeFailure, match=reason):
        parse(json.dumps(rows))


def test_older_versions_have_no_depth_and_texts_are_cut():
    row = {k: v for k, v in RESULT.items() if k not in ("n_depth", "stddev_ts", "gpu_info")}
    (found,) = parse(json.dumps([{**row, "model_type": "x" * 1000}]))
    assert (found["n_depth"], found["stddev"], found["card"]) == (0, 0.0, "")
    assert found["model"] == "x" * 200


def test_nesting_is_no_json():
    with pytest.raises(RuntimeFailure, match="no JSON"):
        parse("[" * 100_000)


@pytest.mark.parametrize(("script", "status"), [
    (printing(json.dumps([RESULT, DECODE])), 0), ("echo no card >&2; exit 1", 1),
])
def test_a_report_says_what_became_of_it(program, tmp_path, capsys, script, status):
    held = tmp_path / "model.json"
    arguments = ["model", "--package", "qwen3_8_27b:mini", "--device", "host", "--phases", "peer",
                 "--peer-bench", str(program(script)), "--peer-model", "m.gguf",
                 "--json", str(held)]
    assert bench.main(arguments) == status
    text = capsys.readouterr().out
    report = json.loads(held.read_text())
    if status:
        assert "- peer llama-bench, run 0: RuntimeFailure: llama-bench: ended with 1" in text
        assert report["peer"] == []
    else:
        assert "| decode 128 | 0 | 100.0 | 12.0 | - | - |" in text
        assert len(report["peer"][0]["results"]) == 2
