"""Owns the structure of the generation block: policy, thresholds, portability."""

from typing import Any

import pytest

from packages.layer_package.errors import GenerationError, Report
from packages.layer_package.generation import check_generation
from tests.layer_package.generation_cases import (
    GONE,
    changed,
    glm_policy,
    report_of,
    whole_block,
    whole_menu,
)

BLOCK = whole_block()
POLICY, THRESHOLDS = "/policy", "/thresholds"

# id, change, kind, severity in a reader, severity in a writer.
CASES = [
    ("M77", ("/policy/decode", "metal-flash"), "unsupported_policy_value", "warning", "error"),
    ("M78", ("/policy/profile", GONE), "missing_policy_profile", "error", "error"),
    ("M79", ("/thresholds/dense_mask_max_bytes", -1), "invalid_threshold", "error", "error"),
    ("M80", ("/glm_dsa", {}), "nonportable_generation_field", "warning", "error"),
    ("profile-blank", ("/policy/profile", " "), "missing_policy_profile", "error", "error"),
    ("profile-null", ("/policy/profile", None), "missing_policy_profile", "error", "error"),
    ("profile-number", ("/policy/profile", 1), "invalid_field_type", "error", "error"),
    ("profile-v2", ("/policy/profile", "glm-dsa-v2"), "unsupported_policy_profile", "warning",
     "error"),
    ("decode-list", ("/policy/decode", ["dense"]), "invalid_field_type", "error", "error"),
    ("verify-blank", ("/policy/verify", ""), "unsupported_policy_value", "warning", "error"),
    ("case", ("/policy/short_prefill", "Dense"), "unsupported_policy_value", "warning", "error"),
    ("near", ("/policy/long_prefill", "sparse_chunked"), "unsupported_policy_value", "warning",
     "error"),
    ("indexshare", ("/policy/indexshare", "never"), "unsupported_policy_value", "warning",
     "error"),
    ("switch-value", ("/policy/experimental/moe_weighted_down", "on"),
     "unsupported_policy_value", "warning", "error"),
    ("switch-name", ("/policy/experimental/turbo", "off"), "unsupported_policy_value", "warning",
     "error"),
    ("switch-type", ("/policy/experimental/moe_weighted_down", True), "invalid_field_type",
     "error", "error"),
    ("experimental-list", ("/policy/experimental", []), "invalid_field_type", "error", "error"),
    ("policy-text", ("/policy", "glm-dsa-v1"), "invalid_field_type", "error", "error"),
    ("thresholds-list", ("/thresholds", [1]), "invalid_field_type", "error", "error"),
    ("speculation-list", ("/speculative_decoding", []), "invalid_field_type", "error", "error"),
    ("threshold-bool", ("/thresholds/compact_flash_min_kv", True), "invalid_threshold", "error",
     "error"),
    ("threshold-float", ("/thresholds/compact_flash_min_kv", 1.0), "invalid_threshold", "error",
     "error"),
    ("threshold-text", ("/thresholds/short_prefill_max_tokens", "1"), "invalid_threshold",
     "error", "error"),
    ("threshold-2^64", ("/thresholds/dense_mask_max_bytes", 2**64), "invalid_threshold", "error",
     "error"),
    ("threshold-other", ("/thresholds/direct_sparse_decode_max_top_k", -3), "ignored_threshold",
     "note", "note"),
    *((f"nonportable-{name}", (f"/{name}", {}), "nonportable_generation_field", "warning", "error")
      for name in ("metal", "cuda", "cpu", "vulkan", "skippy", "CUDA_graphs", "qwen3", "rocm-7")),
]  # fmt: skip


@pytest.mark.parametrize(("change", "kind", "reader", "writer"),
                         [c[1:] for c in CASES], ids=[c[0] for c in CASES])  # fmt: skip
def test_one_change_has_one_finding_where_it_is(
    change: tuple[str, Any], kind: str, reader: str, writer: str
) -> None:
    for severity, how in ((reader, {}), (writer, {"writer": True})):
        issues = list(report_of(changed(BLOCK, change), **how))
        assert [(i.kind, i.severity) for i in issues] == [(kind, severity)]
        where = f"/generation{change[0]}"
        assert issues[0].pointer == (where.rsplit("/", 1)[0] if kind.startswith("ign") else where)


@pytest.mark.parametrize("value", [[], "x", 1, True, 0.5], ids=repr)
def test_m76_a_block_that_is_no_object(value: object) -> None:
    report = report_of(value)
    assert [(i.kind, i.pointer) for i in report] == [("invalid_field_type", "/generation")]
    with pytest.raises(GenerationError) as caught:
        check_generation(value, 48, Report(fail_fast=True))
    assert caught.value.kind == "invalid_field_type"


@pytest.mark.parametrize(
    "block",
    [
        None,
        {},
        glm_policy(),
        whole_menu(),
        BLOCK,
        {"policy": None, "thresholds": None, "speculative_decoding": None},
        {"policy": {"profile": "glm-dsa-v1"}},
        {"thresholds": {"short_prefill_max_tokens": 0, "dense_mask_max_bytes": 2**64 - 1}},
        {"request_defaults": {}, "notes": "kept", "phase": 1, "glmnet": 1},
    ],
    ids=["null", "empty", "policy", "menu", "both", "nulls", "profile", "bounds", "additive"],
)
def test_sound_blocks_have_no_finding(block: Any) -> None:
    for how in ({}, {"strict": True}, {"writer": True}):
        assert list(report_of(block, **how)) == []


def test_every_fault_is_found_in_the_order_of_the_checks() -> None:
    block = changed(
        BLOCK,
        ("/metal", 1),
        ("/policy/decode", "x"),
        ("/thresholds/compact_flash_min_kv", -1),
        ("/speculative_decoding/default", "gone"),
    )
    assert report_of(block).kinds() == [
        "nonportable_generation_field",
        "unsupported_policy_value",
        "invalid_threshold",
        "missing_speculative_default_strategy",
    ]


def test_messages_and_notes_stay_short_whatever_the_manifest_holds() -> None:
    block = changed(
        BLOCK,
        ("/policy/decode", "x" * 10**6),
        ("/thresholds/compact_flash_min_kv", 10**5000),
        ("/thresholds", {f"t{i}" * 100: i for i in range(1000)}),
    )
    assert all(len(issue.message) < 2500 for issue in report_of(block))
