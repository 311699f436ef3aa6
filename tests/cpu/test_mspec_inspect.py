"""Owns the proof that `packages.inspect` says what an .mspec file holds, and what is damaged."""

import json
from pathlib import Path

import pytest

from engine.errors import ModelError
from packages.inspect import inspect
from tests.cpu import mspec_cases as cases

ITEMS = cases.sound_items()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "a.mspec"
    made.write_bytes(cases.mspec(ITEMS))
    return made


def test_a_report_names_identity_and_contents(path: Path) -> None:
    lines, facts = inspect(path)
    assert json.loads(json.dumps(facts)) == facts
    weights = cases.weights_id(ITEMS).hex()
    assert facts["ok"] is True
    assert "verified" not in facts
    assert [facts[key] for key in ("model_id", "weights_id", "recipe", "recipe_sha256")] == [
        "tiny", weights, "bf16", cases.RECIPE_SHA256,
    ]  # fmt: skip
    assert facts["file_bytes"] == path.stat().st_size
    assert facts["weights"][0] == {
        "dtype": "f32", "layout": "row_major", "tensors": 2, "bytes": 28
    }  # fmt: skip
    assert [row["tensors"] for row in facts["weights"]] == [2, 1, 1, 1, 1]
    assert sum(row["bytes"] for row in facts["weights"]) == sum(len(i.data) for i in ITEMS[3:])
    assert [(row["name"], row["kind"]) for row in facts["others"]] == [
        ("chat_template", "text"), ("config", "json"), ("anything", "blob"),
    ]  # fmt: skip
    text = "\n".join(lines)
    for word in (
        "'tiny'", weights, "'bf16'", cases.RECIPE_SHA256, "2 x f32 in row_major, 28 bytes",
        "1 x int4 in int4_symmetric_group_bf16_scale, 528 bytes", "'chat_template'",
    ):  # fmt: skip
        assert word in text


def test_verify_finds_nothing_in_a_sound_file(path: Path) -> None:
    lines, facts = inspect(path, verify=True)
    assert facts["ok"] is True
    assert facts["verified"] == {"objects": 9, "damaged": []}
    assert lines[-1] == "verified    all 9 objects are as their digests say"


def test_verify_lists_all_that_is_damaged(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[256] ^= 1
    # The zeros behind an object of 24 bytes; objects before it take 256 bytes each.
    raw[256 + 3 * 256 + 24] = 1
    path.write_bytes(raw)
    assert inspect(path).facts["ok"] is True
    lines, facts = inspect(path, verify=True)
    assert facts["ok"] is False
    assert [row["name"] for row in facts["verified"]["damaged"]] == ["chat_template", "f32"]
    assert lines[-3] == "DAMAGED     2 of 9 objects"
    assert "'chat_template' is damaged" in lines[-2]
    assert "'f32' has bytes other than zero behind it" in lines[-1]


def test_names_from_a_file_are_made_printable(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(cases.mspec([cases.text_item(b"a\nb\x1b[2J", b"x")]))
    lines, facts = inspect(path, verify=True)
    assert all(line.isprintable() for line in lines)
    assert facts["others"][0]["name"] == "a\nb\x1b[2J"


def test_what_does_not_open_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(cases.mspec(ITEMS)[:-1])
    for name in ("a", "missing"):
        with pytest.raises(ModelError):
            inspect(tmp_path / name, verify=True)
