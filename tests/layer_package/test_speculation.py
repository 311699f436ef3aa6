"""Owns the structure and bounds of speculative decoding, one change of a sound block at a time."""

from typing import Any

import pytest

from packages.layer_package.errors import GenerationError, Report
from packages.layer_package.generation import check_generation
from tests.layer_package.generation_cases import GONE, N_LAYERS, changed, report_of, whole_menu

MENU = whole_menu()["speculative_decoding"]
MTP, CACHE, SUFFIX = "/proposers/mtp", "/proposers/cache", "/proposers/suffix"
NATIVE, COMPOSITE = "/strategies/mtp", "/strategies/mtp-suffix"
WINDOW, EXTENSION = f"{NATIVE}/window_policy", f"{COMPOSITE}/extension_policy"
EAGLE = {"type": "eagle"}
INLINE = {"type": "native-mtp", "prediction_depth": 1, "layer_indices": [47]}

# id, changes, kind, severity; the pointer of the finding is that of the last change.
CASES: list[tuple[str, list[tuple[str, Any]], str, str]] = [
    ("M81", [("/default", "eagle")], "missing_speculative_default_strategy", "error"),
    ("M82", [(f"{MTP}/prediction_depth", 2)], "unsupported_native_mtp_prediction_depth", "error"),
    ("M83-empty", [(f"{MTP}/layer_indices", [])], "missing_native_mtp_layers", "error"),
    ("M83-range", [(f"{MTP}/layer_indices", [N_LAYERS])], "native_mtp_layer_out_of_range", "error"),
    ("M85", [(f"{CACHE}/ngram_max", 5)], "unsupported_ngram_cache_max_window", "error"),
    ("M86-min", [(f"{SUFFIX}/ngram_min", 2)], "unsupported_ngram_suffix_window", "error"),
    ("M86-max", [(f"{SUFFIX}/ngram_max", 65)], "unsupported_ngram_suffix_window", "error"),
    ("M87", [(f"{CACHE}/ngram_max", 3), (f"{CACHE}/ngram_min", 4)],
     "invalid_ngram_proposer_window", "error"),
    ("M88", [(f"{CACHE}/history_scope", "shared")], "invalid_ngram_cache_history_scope", "error"),
    ("M88-suffix", [(f"{SUFFIX}/history_scope", "shared")], "invalid_ngram_suffix_history_scope",
     "error"),
    ("M89-policy", [(f"{COMPOSITE}/extension_policy", GONE)],
     "missing_composite_extension_policy", "error"),
    ("M89-primary", [(f"{COMPOSITE}/primary", "suffix")], "invalid_composite_primary_type",
     "error"),
    ("M90", [("/strategies/eagle", EAGLE)], "unsupported_speculative_strategy_type", "warning"),
    ("M90-default", [("/default", "eagle"), ("/strategies/eagle", EAGLE)],
     "unsupported_speculative_strategy_type", "error"),
    ("M91", [(WINDOW, {"default": "fixed", "initial_window": 1, "min_window": 2,
                       "max_window": 4})], "invalid_window_policy_initial", "error"),
    ("M92-0", [(f"{WINDOW}/pipeline_depth", 0)], "invalid_pipeline_depth", "error"),
    ("M92-65", [(f"{WINDOW}/pipeline_depth", 65)], "invalid_pipeline_depth", "error"),
    ("default-gone", [("/default", GONE)], "empty_speculative_default", "error"),
    ("default-blank", [("/default", " \t")], "empty_speculative_default", "error"),
    ("default-null", [("/default", None)], "empty_speculative_default", "error"),
    ("default-number", [("/default", 1)], "invalid_field_type", "error"),
    ("proposer-blank", [("/proposers/ ", INLINE)], "empty_speculative_proposer_name", "error"),
    ("strategy-blank", [("/strategies/", INLINE)], "empty_speculative_strategy_name", "error"),
    ("proposer-auto", [("/proposers/auto", INLINE)], "reserved_strategy_name", "error"),
    ("strategy-auto", [("/strategies/auto", INLINE)], "reserved_strategy_name", "error"),
    ("strategy-off", [("/strategies/disabled", INLINE)], "reserved_strategy_name", "error"),
    ("proposer-null", [("/proposers/x", None)], "invalid_field_type", "error"),
    ("strategy-text", [("/strategies/x", "mtp")], "invalid_field_type", "error"),
    ("proposer-type-spare", [("/proposers/x", EAGLE)], "unsupported_speculative_proposer_type",
     "warning"),
    ("proposer-type-gone", [("/proposers/x", {})], "missing_field", "error"),
    ("proposer-type-list", [("/proposers/x", {"type": ["eagle"]})], "invalid_field_type", "error"),
    ("strategy-type-gone", [("/strategies/x", {})], "missing_field", "error"),
    ("depth-gone", [(f"{MTP}/prediction_depth", GONE)], "unsupported_native_mtp_prediction_depth",
     "error"),
    ("depth-true", [(f"{MTP}/prediction_depth", True)], "invalid_field_type", "error"),
    ("layers-gone", [(f"{MTP}/layer_indices", GONE)], "missing_native_mtp_layers", "error"),
    ("layers-text", [(f"{MTP}/layer_indices", "47")], "invalid_field_type", "error"),
    ("layers-float", [(f"{MTP}/layer_indices", [47.0])], "invalid_field_type", "error"),
    ("layers-negative", [(f"{MTP}/layer_indices", [-1])], "native_mtp_layer_out_of_range", "error"),
    ("layers-twice", [(f"{MTP}/layer_indices", [46, 47, 46])], "duplicate_native_mtp_layer",
     "error"),
    ("ngram-min-0", [(f"{CACHE}/ngram_min", 0)], "invalid_ngram_proposer_window", "error"),
    ("ngram-min-gone", [(f"{CACHE}/ngram_min", GONE)], "invalid_ngram_proposer_window", "error"),
    ("ngram-max-gone", [(f"{SUFFIX}/ngram_max", GONE)], "invalid_ngram_proposer_window", "error"),
    ("ngram-max-text", [(f"{CACHE}/ngram_max", "4")], "invalid_field_type", "error"),
    ("tokens-0", [(f"{CACHE}/max_proposal_tokens", 0)], "invalid_ngram_proposer_max_tokens",
     "error"),
    ("tokens-2^32", [(f"{CACHE}/max_proposal_tokens", 2**32)], "integer_out_of_range", "error"),
    ("tokens-gone", [(f"{CACHE}/max_proposal_tokens", GONE)], "invalid_ngram_proposer_max_tokens",
     "warning"),
    ("scope-gone", [(f"{CACHE}/history_scope", GONE)], "invalid_ngram_cache_history_scope",
     "error"),
    ("ngram-none", [("/strategies/ngram-cache/proposer", GONE)], "missing_ngram_strategy_proposer",
     "error"),
    ("ngram-undeclared", [("/strategies/ngram-cache/proposer", "x")],
     "missing_speculative_proposer", "error"),
    ("ngram-other", [("/strategies/ngram-cache/proposer", "suffix")],
     "ngram_strategy_proposer_type_mismatch", "error"),
    ("native-other", [(f"{NATIVE}/proposer", "cache")],
     "native_mtp_strategy_proposer_type_mismatch", "error"),
    ("native-undeclared", [(f"{NATIVE}/proposer", "x")], "missing_speculative_proposer", "error"),
    ("native-depth", [(f"{NATIVE}/prediction_depth", 2)], "native_mtp_inline_conflict", "error"),
    ("native-layers", [(f"{NATIVE}/layer_indices", [46])], "native_mtp_inline_conflict", "error"),
    ("inline-depth", [("/strategies/x", INLINE), ("/strategies/x/prediction_depth", 0)],
     "unsupported_native_mtp_prediction_depth", "error"),
    ("inline-layers", [("/strategies/x", INLINE), ("/strategies/x/layer_indices", [])],
     "missing_native_mtp_layers", "error"),
    ("primary-gone", [(f"{COMPOSITE}/primary", GONE)], "missing_composite_primary", "error"),
    ("extender-blank", [(f"{COMPOSITE}/extender", "")], "missing_composite_extender", "error"),
    ("extender-undeclared", [(f"{COMPOSITE}/extender", "x")], "missing_speculative_proposer",
     "error"),
    ("extender-native", [(f"{COMPOSITE}/extender", "mtp")], "invalid_composite_extender_type",
     "error"),
    ("extension-0", [(f"{EXTENSION}/initial_tokens", GONE), (f"{EXTENSION}/max_tokens", 0)],
     "invalid_extension_policy_tokens", "error"),
    ("extension-gone", [(f"{EXTENSION}/max_tokens", GONE)], "invalid_extension_policy_tokens",
     "error"),
    ("initial-0", [(f"{EXTENSION}/initial_tokens", 0)], "invalid_extension_policy_tokens", "error"),
    ("initial-33", [(f"{EXTENSION}/initial_tokens", 33)], "invalid_extension_policy_tokens",
     "error"),
    ("backoff", [(f"{EXTENSION}/tail_backoff_proposals", -1)], "invalid_extension_policy_tokens",
     "error"),
    ("extension-spare", [(f"{NATIVE}/extension_policy", {"max_tokens": 0})],
     "extension_policy_ignored", "warning"),
    ("window-blank", [(f"{WINDOW}/default", "")], "empty_window_policy_default", "error"),
    ("window-gone", [(f"{WINDOW}/default", GONE)], "empty_window_policy_default", "error"),
    ("window-other", [(f"{WINDOW}/default", "Fixed")], "invalid_window_policy_default", "error"),
    ("window-0", [(f"{WINDOW}/min_window", 0)], "invalid_window_policy_zero", "error"),
    ("window-missing", [(f"{WINDOW}/max_window", GONE)], "missing_field", "error"),
    ("window-bounds", [(f"{WINDOW}/min_window", 2)], "invalid_window_policy_bounds", "error"),
    ("window-initial", [(f"{WINDOW}/initial_window", 2)], "invalid_window_policy_initial", "error"),
    ("window-list", [(WINDOW, [])], "invalid_field_type", "error"),
    ("depth-text", [(f"{WINDOW}/pipeline_depth", "1")], "invalid_field_type", "error"),
    ("window-wide", [(f"{WINDOW}/max_window", 2)], "native_mtp_window_wider_than_one", "warning"),
    ("window-adaptive", [(f"{WINDOW}/default", "adaptive")], "native_mtp_window_wider_than_one",
     "warning"),
    ("draft-gone", [("/strategies/d", {"type": "draft-model"})], "missing_draft_model", "error"),
    ("draft-blank", [("/strategies/d", {"type": "draft-model", "draft_model": " "})],
     "missing_draft_model", "error"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "kind", "severity"),
                         [c[1:] for c in CASES], ids=[c[0] for c in CASES])  # fmt: skip
def test_one_change_has_one_finding_where_it_is(
    changes: list[tuple[str, Any]], kind: str, severity: str
) -> None:
    block = {"speculative_decoding": changed(MENU, *changes)}
    issues = list(report_of(block))
    assert [(i.kind, i.severity) for i in issues] == [(kind, severity)]
    assert issues[0].pointer is not None
    changed_at = f"/generation/speculative_decoding{changes[-1][0]}"
    # At the member, inside it (an entry of a list), or at the object that holds both bounds.
    parent = changed_at.rsplit("/", 1)[0]
    assert issues[0].pointer.startswith(parent), issues[0]
    if severity == "error":
        with pytest.raises(GenerationError) as caught:
            check_generation(block, N_LAYERS, Report(fail_fast=True))
        assert caught.value.kind == kind
    else:
        check_generation(block, N_LAYERS, Report(fail_fast=True))


SOUND = {
    "menu": [],
    "inline": [("/strategies/mtp", INLINE)],
    "inline-agrees": [
        (f"{MTP}/layer_indices", [46, 47]),
        (f"{NATIVE}/layer_indices", [47, 46]),
        (f"{NATIVE}/prediction_depth", 1),
    ],
    "cache-1-to-4": [(f"{CACHE}/ngram_min", 1)],
    "cache-4-to-4": [(f"{CACHE}/ngram_min", 4)],
    "suffix-3-to-64": [(f"{SUFFIX}/ngram_min", 3), (f"{SUFFIX}/ngram_max", 64)],
    "proposal-beyond-window": [(f"{CACHE}/max_proposal_tokens", 2**32 - 1)],
    "depth-64": [(f"{WINDOW}/pipeline_depth", 64)],
    "initial-at-max": [(f"{EXTENSION}/initial_tokens", 32)],
    "layer-0": [(f"{MTP}/layer_indices", [0])],
    "draft": [("/strategies/d", {"type": "draft-model", "draft_model": "acme/tiny:Q4"})],
    "window-of-ngram": [
        ("/strategies/ngram-cache/window_policy",
         {"default": "adaptive", "initial_window": 2, "min_window": 1, "max_window": 9}),
    ],
    "unknown-members": [("/x", 1), (f"{MTP}/y", 2), (f"{NATIVE}/z", [])],
}  # fmt: skip


@pytest.mark.parametrize("changes", SOUND.values(), ids=SOUND)
def test_bounds_are_inclusive_and_sound_blocks_have_no_finding(
    changes: list[tuple[str, Any]],
) -> None:
    for how in ({}, {"strict": True, "writer": True}):
        assert list(report_of({"speculative_decoding": changed(MENU, *changes)}, **how)) == []


def test_an_absent_proposal_limit_is_an_error_when_strict() -> None:
    block = {"speculative_decoding": changed(MENU, (f"{CACHE}/max_proposal_tokens", GONE))}
    assert not report_of(block, strict=True).valid


def test_an_unknown_proposer_is_an_error_once_a_usable_strategy_needs_it() -> None:
    for user in ({"type": "ngram-cache", "proposer": "x"},
                 {"type": "composite", "primary": "mtp", "extender": "x",
                  "extension_policy": {"max_tokens": 1}}):  # fmt: skip
        menu = changed(MENU, ("/proposers/x", EAGLE), ("/strategies/s", user))
        assert report_of({"speculative_decoding": menu}).kinds() == [
            "unsupported_speculative_proposer_type"
        ]
    menu = changed(MENU, ("/proposers/x", EAGLE), ("/strategies/s", {**EAGLE, "proposer": "x"}))
    assert report_of({"speculative_decoding": menu}).valid


def test_a_long_layer_list_has_one_finding_of_each_kind() -> None:
    menu = changed(MENU, (f"{MTP}/layer_indices", [10**6] * 100_000))
    assert report_of({"speculative_decoding": menu}).kinds() == [
        "native_mtp_layer_out_of_range",
        "duplicate_native_mtp_layer",
    ]


def test_pointers_escape_the_ids() -> None:
    menu = changed(MENU, ("/proposers", {"a/b~c": EAGLE}), ("/strategies", {"mtp": INLINE}))
    assert [i.pointer for i in report_of({"speculative_decoding": menu})] == [
        "/generation/speculative_decoding/proposers/a~1b~0c/type"
    ]
