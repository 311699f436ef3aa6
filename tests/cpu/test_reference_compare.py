"""Owns the comparison tool: named tolerances, the first divergent tensor, dumps, the heat map.

It is long because a tool that judges others is judged on each kind of error it must not miss.
"""

import dataclasses
import json
import xml.etree.ElementTree as Tree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference import compare as tool
from reference import dump as dumping
from reference.compare import TOLERANCES, compare, difference, mismatch
from reference.config import TINY
from reference.dump import TAPS, Dump, read_dump, run, write_dump
from reference.errors import OracleError
from reference.heatmap import colour, draw
from reference.hybrid import Hybrid
from reference.rounding import ENGINE_BF16
from reference.synthetic import lively, write_checkpoint

SMALL = dataclasses.replace(TINY, n_layers=4)
IDS = [5, 25, 7, 9, 11]


@pytest.fixture(scope="module")
def reference() -> Dump:
    return run(Hybrid(lively(SMALL, 1), SMALL), IDS, mtp=True)


def changed(dump: Dump, name: str, edit: Any) -> Dump:
    array = dump.tensors[name].copy()
    edit(array)
    return dataclasses.replace(dump, tensors={**dump.tensors, name: array})


def test_every_tap_of_the_format_is_recorded(reference: Dump) -> None:
    taps = {name.rpartition(".")[2] for name in reference.tensors if not name.startswith("state")}
    assert taps == set(TAPS) - {"scores"}
    assert "state.0.matrix" in reference.tensors
    assert "state.3.k" in reference.tensors


def test_taps_fit_together(reference: Dump) -> None:
    t = reference.tensors
    for layer in range(SMALL.n_layers):
        before = t["model.embed"] if layer == 0 else t[f"layer.{layer - 1}.resid"]
        mid = before + t[f"layer.{layer}.mixer_out"]
        np.testing.assert_array_equal(t[f"layer.{layer}.resid_mid"], mid)
        end = mid + t[f"layer.{layer}.mlp_out"]
        np.testing.assert_array_equal(t[f"layer.{layer}.resid"], end)
    np.testing.assert_array_equal(t["state.3.k"], t["layer.3.k"])
    np.testing.assert_array_equal(t["state.0.conv"], t["layer.0.conv_in"][-3:])


def test_a_dump_round_trips(reference: Dump, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_dump(path, reference)
    found = read_dump(path)
    assert found.meta["format"] == 1
    assert found.meta["rounding"] == "exact"
    assert set(found.tensors) == set(reference.tensors)
    assert all(item.passed for item in compare(reference, found, "exact"))


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_what_is_equal_passes_and_reports_zero(reference: Dump, tolerance: str) -> None:
    found = compare(reference, reference, tolerance)
    assert all(item.passed and item.norm == item.cell == item.row == 0.0 for item in found)


def test_the_first_divergent_tensor_is_the_first_computed(reference: Dump) -> None:
    def bump(array: Any) -> None:
        array[2, 7] += 0.5

    bad = reference
    for name in ("model.logits", "layer.2.resid", "layer.1.gated", "state.0.conv", "mtp.fc"):
        edit = bump if reference.tensors[name].ndim == 2 else (lambda a: a.__setitem__(1, a[1] + 1))
        bad = changed(bad, name, edit)
    found = [item.name for item in compare(reference, bad, "f32_path") if not item.passed]
    assert found == ["layer.1.gated", "layer.2.resid", "model.logits", "state.0.conv", "mtp.fc"]


def test_the_report_names_cell_and_values(reference: Dump) -> None:
    bad = changed(reference, "layer.2.resid", lambda a: a.__setitem__((2, 7), 9.0))
    first = next(item for item in compare(reference, bad, "f32_path") if not item.passed)
    assert (first.name, first.index, first.got) == ("layer.2.resid", (2, 7), 9.0)
    assert first.want == reference.tensors["layer.2.resid"][2, 7]
    assert "[2, 7]" in str(first)


def test_one_wrong_cell_and_one_wrong_row_cannot_hide_in_a_large_array() -> None:
    want = np.random.default_rng(0).standard_normal((4000, 256))
    bounds = dataclasses.replace(TOLERANCES["bf16_layer"], row=1.0, norm=1.0)
    got = want.copy()
    got[17, 3] += 0.3
    assert not difference("x", want, got, bounds).passed
    bounds = dataclasses.replace(TOLERANCES["bf16_layer"], cell=1.0)
    got = want.copy()
    # Its share of the whole is 0.1 percent; no cell stands out.
    got[17] *= 1.05
    found = difference("x", want, got, bounds)
    assert found.norm < 1e-3
    assert found.row == pytest.approx(0.05, rel=1e-2)
    assert not found.passed


def test_a_small_error_everywhere_fails_by_its_norm() -> None:
    want = np.random.default_rng(0).standard_normal((40, 256))
    bounds = dataclasses.replace(TOLERANCES["bf16_layer"], row=1.0, cell=1.0)
    assert difference("x", want, want * 1.019, bounds).passed
    assert not difference("x", want, want * 1.021, bounds).passed


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["want", "got", "both"])
def test_what_is_not_finite_always_fails(tolerance: str, bad: float, side: str) -> None:
    want, got = np.ones((2, 3)), np.ones((2, 3))
    for name, array in (("want", want), ("got", got)):
        if side in {name, "both"}:
            array[1, 2] = bad
    assert "[1, 2]" in (mismatch(got, want, tolerance) or "")


def test_hidden_scores_are_equal_and_no_others() -> None:
    want = np.array([[0.5, -np.inf], [0.25, 0.75]])
    assert mismatch(want, want, "exact", "layer.3.scores") is None
    assert mismatch(np.array([[0.5, 0.0], [0.25, 0.75]]), want, "exact", "layer.3.scores")


def test_shapes_zeros_and_unknown_names() -> None:
    assert "shape" in (mismatch(np.ones(3), np.ones(4), "bf16_path") or "")
    assert mismatch(np.zeros(3), np.zeros(3), "exact") is None
    assert mismatch(np.full(3, 1e-30), np.zeros(3), "bf16_path") is not None
    with pytest.raises(OracleError, match="tolerance"):
        mismatch(np.ones(1), np.ones(1), "loose")


def test_a_missing_tensor_fails_unless_a_part_is_asked_for(reference: Dump) -> None:
    part = {n: a for n, a in reference.tensors.items() if n != "layer.1.beta"}
    judged = dataclasses.replace(reference, tensors=part)
    failed = [item for item in compare(reference, judged, "exact") if not item.passed]
    assert [str(item) for item in failed] == ["layer.1.beta: only in A"]
    assert all(item.passed for item in compare(reference, judged, "exact", partial=True))
    backwards = compare(judged, reference, "exact", partial=True)
    assert [str(item) for item in backwards if not item.passed] == ["layer.1.beta: only in B"]


def test_what_cannot_be_compared_is_an_error(reference: Dump) -> None:
    other = dataclasses.replace(reference, ids=reference.ids + 1)
    with pytest.raises(OracleError, match="different ids"):
        compare(reference, other, "exact")
    nothing = dataclasses.replace(reference, tensors={})
    with pytest.raises(OracleError, match="no tensor in common"):
        compare(reference, nothing, "exact")


def test_command_lines_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "model", lively(SMALL, 1), SMALL)
    names = {}
    for label, extra in {
        "exact": [], "chunked": ["--chunk", "2"], "bf16": ["--rounding", "bf16"],
    }.items():
        names[label] = str(tmp_path / f"{label}.npz")
        given = [str(tmp_path / "model"), "--ids", "5,25,7", "--out", names[label], "--mtp", *extra]
        assert dumping._main(given) == 0
    assert tool._main([names["exact"], names["chunked"], "--tolerance", "f64_path"]) == 0
    assert "all 120 tensors within f64_path" in capsys.readouterr().out
    picture = tmp_path / "errors.svg"
    assert tool._main([names["exact"], names["bf16"], "--svg", str(picture)]) == 1
    said = capsys.readouterr().out
    assert "first: layer.0.input_norm at [" in said
    assert "layer.3 " in said
    shown = Tree.parse(picture).getroot()
    texts = [element.text for element in shown.iter() if element.tag.endswith("}text")]
    assert {"resid", "mlp_act", "state matrix", "0", "3", "mtp"} <= set(texts)


@pytest.mark.parametrize(
    "arguments",
    [["nowhere", "--ids", "1"], ["{model}", "--ids", "1,400"], ["{model}", "--ids", "-1"]],
)
def test_dump_command_refuses_bad_input(tmp_path: Path, arguments: list[str]) -> None:
    write_checkpoint(tmp_path / "model", lively(SMALL, 1), SMALL)
    given = [word.format(model=tmp_path / "model") for word in arguments]
    # "=" keeps a leading minus from looking like an option.
    given = [given[0], f"--ids={given[2]}", "--out", str(tmp_path / "x.npz")]
    assert dumping._main(given) == 2
    assert not (tmp_path / "x.npz").exists()


META = json.dumps({"format": 1})
GOOD: dict[str, Any] = {
    "meta": META, "ids": np.arange(3), "positions": np.zeros((3, 3), int),
    "model.embed": np.ones((3, 2)),
}
BROKEN: dict[str, dict[str, Any]] = {
    "no_meta": {**GOOD, "meta": None},
    "no_ids": {**GOOD, "ids": None},
    "format": {**GOOD, "meta": json.dumps({"format": 2})},
    "meta_list": {**GOOD, "meta": "[]"},
    "meta_text": {**GOOD, "meta": "{"},
    "positions": {**GOOD, "positions": np.zeros((2, 3))},
    "name": {**GOOD, "model.unknown": np.ones(1)},
    "scope": {**GOOD, "layers.0.resid": np.ones(1)},
    "state_part": {**GOOD, "state.0.resid": np.ones(1)},
    "text": {**GOOD, "model.logits": np.array(["a"])},
    "complex": {**GOOD, "model.logits": np.ones(1, complex)},
}


@pytest.mark.parametrize("entries", BROKEN.values(), ids=BROKEN)
def test_broken_dumps_are_refused(tmp_path: Path, entries: dict[str, Any]) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **{name: value for name, value in entries.items() if value is not None})
    with pytest.raises(OracleError):
        read_dump(path)
    assert tool._main([str(path), str(path)]) == 2


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"\x93NUMPY", b"junk"])
def test_files_that_are_no_dumps_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(OracleError):
        read_dump(tmp_path / "a.npz")


def test_truncated_and_pickled_dumps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **GOOD)
    assert read_dump(path).ids.size == 3
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OracleError):
        read_dump(path)
    np.savez(path, **{**GOOD, "model.logits": np.array([{}], dtype=object)})
    with pytest.raises(OracleError):
        read_dump(path)


def test_a_foreign_tensor_is_not_written(reference: Dump, tmp_path: Path) -> None:
    odd = dataclasses.replace(reference, tensors={"layer.0.wonder": np.ones(1)})
    with pytest.raises(OracleError, match="wonder"):
        write_dump(tmp_path / "a.npz", odd)


def test_colours_tell_sizes_apart_and_labels_are_escaped() -> None:
    assert colour(0.0) == "rgb(255,255,255)"
    assert colour(float("inf")) == colour(float("nan")) == "rgb(0,0,0)"
    assert len({colour(10.0**power) for power in range(-16, 1)}) == 17
    assert colour(5.0) == colour(1.0) != colour(0.5)
    assert colour(1e-30) == colour(1e-16)
    shown = draw({"layer.0.q": (0.1, False, "a < b & c")}, "<x>")
    assert "a &lt; b &amp; c" in shown
    Tree.fromstring(shown)


def test_rounding_is_named_in_a_dump() -> None:
    model = Hybrid(lively(SMALL, 1), SMALL, ENGINE_BF16, chunk=4)
    assert run(model, IDS).meta == {
        "made_by": "reference.dump", "rounding": "bf16", "chunk": 4,
    }
