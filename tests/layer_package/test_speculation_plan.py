"""Owns operator precedence and the resolved plan, row by row.

Long because the tables are.
"""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from packages.layer_package.draft_pairing import TokenizerFacts, pairing_fault
from packages.layer_package.errors import GenerationError, Report
from packages.layer_package.plan import (
    DraftPlan,
    ExtensionPlan,
    NativePlan,
    NgramPlan,
    SpeculationPlan,
    VerifyWindow,
    check_plan,
)
from packages.layer_package.precedence import resolve_speculation
from tests.layer_package.generation_cases import GONE, changed, whole_menu

MENU = whole_menu()
AT = "/speculative_decoding"
DRAFT = {"type": "draft-model", "draft_model": "acme/tiny:Q4"}


def plan_of(generation: Any = MENU, **how: Any) -> SpeculationPlan:
    """A plan of a package."""
    return resolve_speculation(packaged=True, generation=generation, **how)


def direct(**how: Any) -> SpeculationPlan:
    """A plan of a direct GGUF."""
    return resolve_speculation(packaged=False, **how)


def kind_of(call: Any, **how: Any) -> str:
    """The kind that a resolution is refused with."""
    with pytest.raises(GenerationError) as caught:
        call(**how)
    return caught.value.kind


def notes(plan: SpeculationPlan) -> list[str]:
    """Kinds of its notes."""
    return [note.kind for note in plan.notes]


def test_the_whole_menu() -> None:
    window = VerifyWindow(1, 1, 1)
    native = NativePlan(True, 1)
    cache = NgramPlan("ngram-cache", 2, 4, 8)
    suffix = NgramPlan("ngram-suffix", 4, 24, 32)
    expected = {
        "mtp": ("native-mtp", native, None, None, window),
        "ngram-cache": ("ngram-cache", NativePlan(), cache, None, VerifyWindow(1, 4, 1)),
        "ngram-suffix": ("ngram-suffix", NativePlan(), suffix, None, VerifyWindow(1, 4, 1)),
        "mtp-cache": ("native-mtp+ngram-cache", native, cache, ExtensionPlan(8, 8, 0),
                      VerifyWindow(1, 4, 1)),
        "mtp-suffix": ("native-mtp+ngram-suffix", native, suffix, ExtensionPlan(32, 4, 4),
                       VerifyWindow(1, 4, 1)),
    }  # fmt: skip
    for name, (effective, *blocks) in expected.items():
        plan = plan_of(cli={"strategy": name})
        assert (plan.requested_strategy, plan.effective_strategy) == (name, effective)
        assert [plan.native, plan.ngram, plan.extension, plan.verify_window] == blocks
        assert plan.draft is None
        assert plan.sources["strategy"] == "cli"
        assert ("package_recommendation_overridden" in notes(plan)) == (name != "mtp")
        json.dumps(plan.as_json(), allow_nan=False)


# id, how to call, effective strategy, source of the strategy.
ROWS: list[tuple[str, Any, dict[str, Any], str, str]] = [
    ("disabled", plan_of, {"model": {"strategy": "disabled"}}, "disabled", "model"),
    ("auto", plan_of, {"defaults": {"strategy": "auto"}}, "native-mtp", "package"),
    ("absent", plan_of, {}, "native-mtp", "package"),
    ("auto-beats-lower", plan_of, {"cli": {"strategy": "auto"}, "model": {"strategy": "disabled"}},
     "native-mtp", "package"),
    ("silent-package", plan_of, {"generation": None, "native_mtp_proven": True}, "disabled",
     "built-in"),
    ("direct-proven", direct, {"native_mtp_proven": True}, "native-mtp", "built-in"),
    ("direct-plain", direct, {}, "disabled", "built-in"),
    ("direct-off", direct, {"native_mtp_proven": True, "defaults": {"spec_default": False}},
     "disabled", "defaults"),
    ("direct-auto-word", direct, {"native_mtp_proven": True, "cli": {"spec_default": "auto"}},
     "native-mtp", "built-in"),
    ("package-off", plan_of, {"model": {"spec_default": False}}, "disabled", "model"),
    ("off-does-not-bar-names", plan_of,
     {"model": {"spec_default": False}, "cli": {"strategy": "ngram-cache"}}, "ngram-cache", "cli"),
    ("mtp", plan_of, {"cli": {"strategy": "mtp"}}, "native-mtp", "cli"),
    ("mtp-old-name", plan_of, {"cli": {"strategy": "native-mtp-n1"}}, "native-mtp", "cli"),
    ("mtp-by-tensors", plan_of,
     {"cli": {"strategy": "mtp"}, "generation": None, "native_mtp_proven": True},
     "native-mtp", "cli"),
    ("mtp-direct", direct, {"cli": {"strategy": "mtp"}, "native_mtp_proven": True}, "native-mtp",
     "cli"),
    ("composite", plan_of, {"model": {"strategy": "mtp-suffix"}}, "native-mtp+ngram-suffix",
     "model"),
    ("cache-direct", direct,
     {"cli": {"strategy": "ngram-cache"}, "model": {"ngram_min": 2}, "defaults": {"ngram_max": 4}},
     "ngram-cache", "cli"),
    ("suffix-direct", direct, {"cli": {"strategy": "ngram-suffix", "ngram_min": 3,
                                       "ngram_max": 64}}, "ngram-suffix", "cli"),
    ("model-beats-defaults", plan_of,
     {"model": {"strategy": "ngram-cache"}, "defaults": {"strategy": "disabled"}}, "ngram-cache",
     "model"),
    ("cli-beats-model", plan_of,
     {"cli": {"strategy": "disabled"}, "model": {"strategy": "ngram-cache"}}, "disabled", "cli"),
    ("null-is-absent", plan_of, {"cli": {"strategy": None}, "model": {"strategy": "disabled"}},
     "disabled", "model"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "how", "effective", "source"),
                         [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])  # fmt: skip
def test_precedence(call: Any, how: dict[str, Any], effective: str, source: str) -> None:
    plan = call(**how)
    assert plan.effective_strategy == effective
    assert plan.sources["strategy"] == source


NO_CACHE = changed(MENU, (f"{AT}/strategies/ngram-cache", GONE))
EAGLE = changed(MENU, (f"{AT}/strategies/eagle", {"type": "eagle"}))
REFUSED: list[tuple[str, Any, dict[str, Any], str]] = [
    ("mtp-unproven", plan_of, {"generation": None, "cli": {"strategy": "mtp"}},
     "native_mtp_unproven"),
    ("mtp-unproven-direct", direct, {"cli": {"strategy": "native-mtp-n1"}}, "native_mtp_unproven"),
    ("cache-not-declared", plan_of,
     {"generation": NO_CACHE, "cli": {"strategy": "ngram-cache", "ngram_min": 2, "ngram_max": 3}},
     "strategy_not_declared"),
    ("cache-silent-package", plan_of,
     {"generation": None, "cli": {"strategy": "ngram-suffix", "ngram_min": 3, "ngram_max": 3}},
     "strategy_not_declared"),
    ("other", plan_of, {"model": {"strategy": "eagle"}}, "strategy_not_declared"),
    ("blank", plan_of, {"model": {"strategy": " "}}, "strategy_not_declared"),
    ("composite-direct", direct, {"cli": {"strategy": "mtp-cache"}, "native_mtp_proven": True},
     "strategy_not_declared"),
    ("unsupported-type", plan_of, {"generation": EAGLE, "cli": {"strategy": "eagle"}},
     "unsupported_speculative_strategy_type"),
    ("no-bounds", direct, {"cli": {"strategy": "ngram-cache"}}, "speculative_bounds_required"),
    ("one-bound", direct, {"cli": {"strategy": "ngram-cache", "ngram_max": 3}},
     "speculative_bounds_required"),
    ("direct-cache-5", direct, {"cli": {"strategy": "ngram-cache", "ngram_min": 1,
                                        "ngram_max": 5}}, "unsupported_ngram_cache_max_window"),
    ("direct-suffix-2", direct, {"cli": {"strategy": "ngram-suffix", "ngram_min": 2,
                                         "ngram_max": 5}}, "unsupported_ngram_suffix_window"),
    ("merged-window", plan_of, {"cli": {"strategy": "ngram-suffix", "ngram_max": 3}},
     "invalid_ngram_proposer_window"),
    ("merged-cache-5", plan_of, {"cli": {"strategy": "ngram-cache", "ngram_max": 5}},
     "unsupported_ngram_cache_max_window"),
    ("proposal-0", plan_of, {"cli": {"strategy": "ngram-cache", "ngram_max_proposal_tokens": 0}},
     "invalid_ngram_proposer_max_tokens"),
    ("extension-native", plan_of, {"model": {"extension_max_tokens": 4}},
     "extension_requires_composite"),
    ("extension-ngram", plan_of, {"cli": {"strategy": "ngram-cache"},
                                  "defaults": {"extension_max_tokens": 4}},
     "extension_requires_composite"),
    ("extension-0", plan_of, {"cli": {"strategy": "mtp-cache", "extension_max_tokens": 0}},
     "invalid_extension_policy_tokens"),
    ("extension-start", plan_of, {"cli": {"strategy": "mtp-cache",
                                          "extension_initial_tokens": 9}},
     "invalid_extension_policy_tokens"),
    ("window-0", plan_of, {"cli": {"verify_window_min_tokens": 0}}, "invalid_window_policy_zero"),
    ("window-bounds", plan_of, {"cli": {"verify_window_min_tokens": 2}},
     "invalid_window_policy_bounds"),
    ("depth-65", plan_of, {"cli": {"verify_window_pipeline_depth": 65}}, "invalid_pipeline_depth"),
    ("drafts", plan_of, {"cli": {"draft_min_tokens": 2}}, "invalid_speculative_plan"),
    ("drafts-0", plan_of, {"cli": {"draft_max_tokens": 0}}, "invalid_speculative_plan"),
    ("unknown-field", plan_of, {"defaults": {"ngram_maximum": 3}}, "unknown_speculative_field"),
    ("bool", plan_of, {"cli": {"ngram_max": True}}, "invalid_field_type"),
    ("text", plan_of, {"model": {"ngram_max": "3"}}, "invalid_field_type"),
    ("float", plan_of, {"model": {"draft_max_tokens": 1.0}}, "invalid_field_type"),
    ("not-a-bool", plan_of, {"model": {"native_mtp_suppress_cooldown_drafts": 1}},
     "invalid_field_type"),
    ("spec-default", plan_of, {"model": {"spec_default": "no"}}, "invalid_field_type"),
    ("fault", plan_of, {"model": {"pairing_fault": "ignore"}}, "invalid_field_type"),
    ("negative", plan_of, {"model": {"native_mtp_reject_cooldown_tokens": -1}},
     "integer_out_of_range"),
    ("hidden-by-cli", plan_of, {"cli": {"ngram_max": 3}, "defaults": {"ngram_max": 2**32}},
     "integer_out_of_range"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "how", "kind"),
                         [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])  # fmt: skip
def test_refusals(call: Any, how: dict[str, Any], kind: str) -> None:
    assert kind_of(call, **how) == kind


def test_fields_merge_one_by_one_and_say_where_they_came_from() -> None:
    plan = plan_of(
        cli={"strategy": "mtp-suffix", "ngram_max": 16},
        model={"ngram_max": 20, "extension_max_tokens": 16, "verify_window_max_tokens": 8},
        defaults={"extension_max_tokens": 2, "native_mtp_reject_cooldown_tokens": 3},
    )
    assert plan.ngram == NgramPlan("ngram-suffix", 4, 16, 32)
    assert plan.extension == ExtensionPlan(16, 4, 4)
    assert plan.native.reject_cooldown_tokens == 3
    assert plan.verify_window == VerifyWindow(1, 8, 1)
    expected = {
        "strategy": "cli",
        "ngram.ngram_min": "package",
        "ngram.ngram_max": "cli",
        "ngram.max_proposal_tokens": "package",
        "extension.max_tokens": "model",
        "extension.initial_tokens": "package",
        "native.reject_cooldown_tokens": "defaults",
        "native.max_draft_tokens": "package",
        "native.min_draft_tokens": "built-in",
        "verify_window.max_tokens": "model",
        "verify_window.pipeline_depth": "built-in",
    }
    assert {name: plan.sources[name] for name in expected} == expected


def test_a_tighter_extension_pulls_its_start_down() -> None:
    plan = plan_of(cli={"strategy": "mtp-suffix", "extension_max_tokens": 2})
    assert plan.extension == ExtensionPlan(2, 2, 4)


def test_an_absent_proposal_limit_is_the_merged_window() -> None:
    menu = changed(MENU, (f"{AT}/proposers/cache/max_proposal_tokens", GONE))
    plan = plan_of(menu, cli={"strategy": "ngram-cache", "ngram_max": 3})
    assert plan.ngram == NgramPlan("ngram-cache", 2, 3, 3)


WIDER = [
    ("ngram-suffix", {"ngram_max": 25}, {"ngram_max": 23}),
    ("ngram-suffix", {"ngram_min": 3}, {"ngram_min": 5}),
    ("ngram-suffix", {"ngram_max_proposal_tokens": 33}, {"ngram_max_proposal_tokens": 31}),
    ("mtp-suffix", {"extension_max_tokens": 33}, {"extension_max_tokens": 31}),
    ("mtp-suffix", {"extension_initial_tokens": 5}, {"extension_initial_tokens": 3}),
    ("mtp", {"verify_window_max_tokens": 2}, {"verify_window_max_tokens": 1}),
    ("mtp", {"verify_window_pipeline_depth": 2}, {"verify_window_pipeline_depth": 1}),
    ("mtp", {"draft_max_tokens": 3}, {"draft_max_tokens": 1}),
]


@pytest.mark.parametrize(("strategy", "wider", "tighter"), WIDER, ids=lambda v: str(v))
def test_wider_than_the_package_is_noted_or_refused(
    strategy: str, wider: dict[str, int], tighter: dict[str, int]
) -> None:
    asked = {"cli": {"strategy": strategy}}
    plan = plan_of(**asked, defaults=wider)
    assert "override_exceeds_package" in notes(plan)
    assert "package_recommendation_overridden" in notes(plan)
    assert kind_of(plan_of, **asked, defaults=wider, tighten_only=True) == (
        "override_exceeds_package"
    )
    plan = plan_of(**asked, defaults=tighter, tighten_only=True)
    assert "override_exceeds_package" not in notes(plan)


def test_what_the_package_does_not_say_cannot_be_exceeded() -> None:
    plan = plan_of(
        cli={"strategy": "ngram-cache", "verify_window_max_tokens": 9}, tighten_only=True
    )
    assert plan.verify_window.max_tokens == 9


def test_disabled_drops_what_was_inherited() -> None:
    inherited = {"extension_max_tokens": 4, "ngram_max": 3, "draft_max_tokens": 0}
    for how in (
        {"cli": {"strategy": "disabled"}, "defaults": inherited},
        {"cli": {"spec_default": False}, "defaults": inherited},
    ):
        plan = plan_of(**how)
        assert plan.effective_strategy == "disabled"
        assert (plan.native, plan.ngram, plan.extension) == (NativePlan(), None, None)
        assert plan.verify_window == VerifyWindow()
        assert plan.sources == {"strategy": "cli"}
        assert notes(plan) == ["package_recommendation_overridden"]


def test_notes_reach_the_report_and_unused_settings_are_noted() -> None:
    report = Report()
    plan = plan_of(defaults={"ngram_max": 3, "draft_split_probability": 0.5}, report=report)
    assert list(report) == list(plan.notes)
    assert notes(plan) == ["override_not_used"] * 2
    assert report.valid


def test_the_old_id_of_a_package_is_found_as_mtp() -> None:
    inline = {"type": "native-mtp", "prediction_depth": 1, "layer_indices": [47]}
    block = {"default": "native-mtp-n1", "strategies": {"native-mtp-n1": inline}}
    for cli in ({"strategy": "mtp"}, {"strategy": "native-mtp-n1"}, {}):
        plan = plan_of({"speculative_decoding": block}, cli=cli)
        assert plan.effective_strategy == "native-mtp"
        assert plan.sources["native.max_draft_tokens"] == "package"
        assert notes(plan) == []


def test_a_proposer_proves_native_prediction_under_any_id() -> None:
    menu = changed(MENU, (f"{AT}/strategies/mtp", GONE), (f"{AT}/default", "ngram-cache"))
    assert plan_of(menu, cli={"strategy": "mtp"}).effective_strategy == "native-mtp"
    # What is called mtp but is something else is not native prediction.
    cache = MENU["speculative_decoding"]["proposers"]["cache"]
    fake = {"default": "mtp", "proposers": {"c": cache},
            "strategies": {"mtp": {"type": "ngram-cache", "proposer": "c"}}}  # fmt: skip
    assert kind_of(plan_of, generation={"speculative_decoding": fake}, cli={"strategy": "mtp"}) == (
        "native_mtp_unproven"
    )


def test_draft_models_are_paired() -> None:
    menu = changed(MENU, (f"{AT}/strategies/d", DRAFT), (f"{AT}/default", "d"))
    plan = plan_of(menu, pairing=lambda reference: None)
    assert plan.draft == DraftPlan("acme/tiny:Q4", 4)
    assert plan.effective_strategy == "draft-model"
    assert notes(plan_of(menu)) == ["draft_pairing_unchecked"]
    asked: list[str] = []

    def misfit(reference: str) -> str:
        asked.append(reference)
        return "tokenizers differ"

    plan = plan_of(menu, pairing=misfit)
    assert (plan.effective_strategy, plan.draft) == ("disabled", None)
    assert [(n.kind, n.severity) for n in plan.notes] == [("incompatible_draft_model", "warning")]
    kept = plan_of(menu, pairing=misfit, model={"pairing_fault": "fail-open"})
    assert kept.effective_strategy == "draft-model"
    closed = {"pairing_fault": "fail_closed"}
    assert kind_of(plan_of, generation=menu, pairing=misfit, model=closed) == (
        "incompatible_draft_model"
    )
    plan = plan_of(menu, cli={"draft_model": "/models/other.gguf"}, pairing=misfit)
    assert asked[-1] == "/models/other.gguf"
    assert not any("/models" in note.message for note in plan.notes)


def test_pairing_compares_vocabulary_and_tokenizer() -> None:
    facts = TokenizerFacts("ab" * 32, 1000)
    assert pairing_fault(facts, TokenizerFacts("AB" * 32, 1000)) is None
    assert pairing_fault(facts, TokenizerFacts("cd" * 32, 1000)) == "tokenizers differ"
    assert "1001" in (pairing_fault(facts, TokenizerFacts("ab" * 32, 1001)) or "")


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, 2])
@pytest.mark.parametrize("name", ["draft_acceptance_threshold", "draft_split_probability"])
def test_probabilities_lie_between_0_and_1(name: str, value: float) -> None:
    menu = changed(MENU, (f"{AT}/strategies/d", DRAFT), (f"{AT}/default", "d"))
    assert kind_of(plan_of, generation=menu, cli={name: value}) == "invalid_speculative_plan"
    for sound in (0, 1, 0.5):
        assert plan_of(menu, cli={name: sound}).draft is not None


def test_invariants_hold_for_any_plan() -> None:
    sound = plan_of(cli={"strategy": "mtp-suffix"})
    check_plan(sound)
    broken = [
        replace(sound, native=NativePlan()),
        replace(sound, native=NativePlan(), effective_strategy="ngram-suffix"),
        replace(sound, ngram=None),
        replace(sound, effective_strategy="native-mtp"),
        replace(sound, ngram=None, effective_strategy="native-mtp"),
        replace(sound, native=replace(sound.native, min_draft_tokens=2)),
        replace(sound, native=replace(sound.native, reject_cooldown_tokens=-1)),
    ]
    for plan in broken:
        assert kind_of(lambda plan=plan: check_plan(plan)) == "invalid_speculative_plan"
