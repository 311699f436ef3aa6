"""Owns the proof that a report has all faults in order, and that no manifest does more."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from packages.layer_package.errors import ManifestError, Report
from packages.layer_package.json_text import parse_json
from packages.layer_package.manifest import read_manifest
from tests.layer_package import manifest_cases as cases
from tests.layer_package.manifest_cases import read
from tests.layer_package.package_cases import valid_manifest


def test_a_report_has_every_fault_in_the_order_of_the_checks() -> None:
    change = cases.both(
        cases.put("/activation_width", 0), cases.put("/layers/1/layer_index", 0),
        cases.put("/layers/0/sha256", "?"), cases.drop("/shared/output"),
        cases.put("/source_model/path", ""), cases.put("/model_id", ""),
        cases.put("/skippy_abi_version", "x"), cases.put("/layers/1/path", "shared/metadata.gguf"),
    )  # fmt: skip
    report = Report()
    assert read(change, report) is None
    assert report.kinds() == [
        "invalid_abi_version", "empty_model_id", "empty_source_model_path",
        "missing_shared_artifact", "invalid_artifact_sha256", "duplicate_layer", "missing_layer",
        "duplicate_artifact_path", "invalid_activation_width",
    ]  # fmt: skip


def test_earlier_findings_of_a_report_do_not_count() -> None:
    report = Report()
    report.add(ManifestError("missing_manifest", "of another package"))
    assert read(lambda manifest: None, report) is not None


def test_a_fail_fast_report_raises_and_has_the_warnings_before() -> None:
    report = Report(fail_fast=True)
    with pytest.raises(ManifestError):
        read(cases.both(cases.put("/model_id", "m"), cases.drop("/shared/output")), report)
    assert report.kinds() == ["model_id_not_coordinate"]


def test_faults_without_end_are_not_collected() -> None:
    report = Report()
    assert read(cases.put("/layers", [{}] * 50_000), report) is None
    assert report.kinds()[-1] == "too_many_issues"
    assert len(report.issues) == 257


def test_gaps_are_named_as_ranges() -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["layer_count"] = 4_000_000_000
        manifest["layers"][1]["layer_index"] = 7

    with pytest.raises(ManifestError, match="no entry for layer 1 to 6, 8 to 3999999999;"):
        read(change)


def test_an_index_out_of_range_fills_no_gap() -> None:
    report = Report()
    assert read(cases.put("/layers/1/layer_index", 7), report) is None
    assert report.kinds() == ["layer_index_out_of_range", "missing_layer"]
    assert "no entry for layer 1;" in report.issues[1].message


def test_nothing_is_read_of_another_format() -> None:
    report = Report()
    change = cases.both(cases.put("/format", "x"), cases.put("/model_id", ""))
    assert read(change, report) is None
    assert report.kinds() == ["invalid_format"]


def test_gaps_are_not_guessed_where_an_index_cannot_be_read() -> None:
    report = Report()
    read(cases.put("/layers/0/layer_index", -1), report)
    assert report.kinds() == ["integer_out_of_range"]


def broken(rng: random.Random, value: Any) -> Any:
    """The same JSON with one place changed at random."""
    spots = list(places(value))
    parent, key = spots[rng.randrange(len(spots))]
    texts: list[Any] = ["", " ", "x", "\0", "../a"]
    junk = [None, True, 0, -1, 2**64, 1.5, [], {}, [{}], {"path": 1}, *texts]
    if rng.random() < 0.2:
        del parent[key]
    else:
        parent[key] = junk[rng.randrange(len(junk))]
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, dict | list):
            yield from places(item)


@pytest.mark.parametrize("seed", range(8))
def test_no_manifest_does_more_than_refuse(seed: int) -> None:
    rng = random.Random(seed)
    n_valid = 0
    for _ in range(150):
        manifest = valid_manifest()
        manifest["projectors"] = [cases.projector()]
        for _ in range(rng.randint(1, 3)):
            broken(rng, manifest)
        data = json.dumps(manifest).encode()
        report = Report()
        found = read_manifest(data, runtime_abi=cases.RUNTIME_ABI, report=report)
        assert (found is not None) == report.valid
        n_valid += found is not None
        if found is None:
            with pytest.raises(ManifestError) as caught:
                read_manifest(data, runtime_abi=cases.RUNTIME_ABI)
            first = next(i for i in report if i.severity == "error")
            assert caught.value.issue == first
        else:
            assert parse_json(data) == found.document
    assert 0 < n_valid < 150
