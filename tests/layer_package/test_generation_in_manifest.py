"""Owns that a manifest is read with the checks of its generation block."""

import json
from typing import Any

import pytest

from packages.layer_package.errors import ManifestError, Report
from packages.layer_package.manifest import read_manifest
from tests.layer_package.generation_cases import GONE, changed, glm_policy, whole_menu
from tests.layer_package.package_cases import valid_manifest

AT = "/generation/speculative_decoding"


def manifest_of(*changes: tuple[str, Any]) -> bytes:
    """The example manifest with policy and menu for its layers, changed."""
    document = valid_manifest()
    menu = changed(
        whole_menu(),
        ("/speculative_decoding/proposers/mtp/layer_indices", [document["layer_count"] - 1]),
    )
    document["generation"] = {**glm_policy(), **menu}
    return json.dumps(changed(document, *changes)).encode()


CASES: list[tuple[str, str, Any, str, str]] = [
    ("M76", "/generation", [], "invalid_field_type", "error"),
    ("M77", "/generation/policy/decode", "metal-flash", "unsupported_policy_value", "warning"),
    ("M78", "/generation/policy/profile", GONE, "missing_policy_profile", "error"),
    ("M79", "/generation/thresholds/dense_mask_max_bytes", -1, "invalid_threshold", "error"),
    ("M80", "/generation/glm_dsa", {}, "nonportable_generation_field", "warning"),
    ("M81", f"{AT}/default", "none", "missing_speculative_default_strategy", "error"),
    ("M82", f"{AT}/proposers/mtp/prediction_depth", 2, "unsupported_native_mtp_prediction_depth",
     "error"),
    ("M83", f"{AT}/proposers/mtp/layer_indices", [2], "native_mtp_layer_out_of_range", "error"),
    ("M85", f"{AT}/proposers/cache/ngram_max", 5, "unsupported_ngram_cache_max_window", "error"),
    ("M92", f"{AT}/strategies/mtp/window_policy/pipeline_depth", 65, "invalid_pipeline_depth",
     "error"),
]  # fmt: skip


@pytest.mark.parametrize(("pointer", "value", "kind", "severity"),
                         [c[1:] for c in CASES], ids=[c[0] for c in CASES])  # fmt: skip
def test_a_manifest_with_a_bad_block(pointer: str, value: Any, kind: str, severity: str) -> None:
    report = Report()
    manifest = read_manifest(manifest_of((pointer, value)), report=report)
    assert [(i.kind, i.severity, i.pointer) for i in report] == [(kind, severity, pointer)] or (
        kind.startswith("native_mtp_layer") and report.kinds() == [kind]
    )
    assert (manifest is not None) == (severity == "warning")
    if severity == "error":
        with pytest.raises(ManifestError):
            read_manifest(manifest_of((pointer, value)))


@pytest.mark.parametrize("generation", [GONE, None, {}, "kept"], ids=str)
def test_sound_manifests_with_and_without_a_block(generation: Any) -> None:
    changes = [] if generation == "kept" else [("/generation", generation)]
    manifest = read_manifest(manifest_of(*changes))
    assert manifest is not None
    if generation == "kept":
        assert manifest.generation == json.loads(manifest_of())["generation"]
    else:
        assert not manifest.generation
