"""Protects the self-test: its report, its exit code, and that a part that fails hides no other."""

import json
import sys
from pathlib import Path

import pytest

from engine import selftest
from engine.errors import ModelError
from packages.smollm2_135m import fetch
from ptx.device import DeviceError

PARTS = [
    "facts", "greedy ids, smollm2_135m:tiny", "repeats, smollm2_135m:tiny",
    "greedy ids, qwen3_8_27b:tiny", "repeats, qwen3_8_27b:tiny", "greedy ids, smollm2_135m",
    "memory",
]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tokens, and no real model."""

    def absent(download: bool = True) -> Path:
        raise ModelError("the model file is not here")

    monkeypatch.setattr(fetch, "locate", absent)
    monkeypatch.setattr(selftest, "N_GREEDY", {"host": 3})
    monkeypatch.setattr(selftest, "N_REPEATS", {"host": 3})


def report(tmp_path: Path, code: int) -> dict[str, bool | None]:
    """Whether each part passed, from the report of a run that ended with `code`."""
    path = tmp_path / "report.json"
    assert selftest.main(["--device", "host", "--no-kernels", "--json", str(path)]) == code
    return {row["name"]: row["passed"] for row in json.loads(path.read_text())["results"]}


def test_every_part_is_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(tmp_path, 0)
    assert found == {name: None if name == PARTS[5] else True for name in PARTS}
    lines = capsys.readouterr().out.splitlines()
    assert [line[:9].strip() for line in lines] == ["ok"] * 5 + ["not run", "ok"]
    assert "the model file is not here" in lines[5]


def test_other_ids_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(range(100))
    monkeypatch.setattr(selftest, "_ids", lambda plan, device, n_tokens: [next(answers)])
    found = report(tmp_path, 1)
    assert [name for name, passed in found.items() if passed is False] == [PARTS[1], PARTS[3]]


def test_a_refusal_fails_its_part_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(device: object) -> str:
        raise DeviceError("the device is unusable")

    monkeypatch.setattr(selftest, "memory", lost)
    assert report(tmp_path, 1)["memory"] is False


def test_without_pytest_the_kernels_part_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)
    path = tmp_path / "report.json"
    assert selftest.main(["--device", "host", "--json", str(path)]) == 1
    rows = {row["name"]: row for row in json.loads(path.read_text())["results"]}
    assert rows["kernels"]["passed"] is False
    assert "did not run" in rows["kernels"]["detail"]
    assert rows["memory"]["passed"] is True


@pytest.mark.parametrize("holds", [True, False])
def test_kernels_pass_or_fail_with_their_tests(tmp_path: Path, holds: bool) -> None:
    (tmp_path / f"test_{holds}.py").write_text(f"def test_planted():\n    assert {holds}\n")
    if holds:
        assert selftest.tested(tmp_path, "host") == "1 passed, 0 skipped"
    else:
        with pytest.raises(AssertionError, match="test_planted"):
            selftest.tested(tmp_path, "host")
