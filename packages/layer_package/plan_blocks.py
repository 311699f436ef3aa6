"""Owns the blocks of a plan: each field of a strategy merged from operator, package and built-in.

It must not know how the strategy was chosen (`precedence.py`).
"""

from collections.abc import Mapping
from typing import Any

from packages.layer_package.errors import GenerationError
from packages.layer_package.merging import Direction, Merge
from packages.layer_package.plan import (
    DraftPlan,
    ExtensionPlan,
    NativePlan,
    NgramPlan,
    SpeculationPlan,
    VerifyWindow,
    effective_name,
)
from packages.layer_package.speculation_proposers import NGRAM_TYPES, PREDICTION_DEPTH

NO_STRATEGY = "disabled"
_EXTENSION_FIELDS = (
    "extension_max_tokens",
    "extension_initial_tokens",
    "extension_tail_backoff_proposals",
)

Object = Mapping[str, Any]


def build_plan(requested: str, strategy: Object, block: Object, merge: Merge) -> SpeculationPlan:
    """The plan of a strategy as a package declares one; a member that it lacks is one the package
    says nothing of.

    GenerationError `extension_requires_composite`, `override_exceeds_package`. Bounds are for
    `check_plan`.
    """
    kind = strategy["type"]
    proposers: Object = block.get("proposers") or {}
    if kind != "composite" and any(name in merge.overrides for name in _EXTENSION_FIELDS):
        raise GenerationError(
            "extension_requires_composite", "extension settings need a composite strategy"
        )
    native = NativePlan()
    if kind in ("native-mtp", "composite"):
        # A prediction depth of one is what a package recommends by declaring native MTP.
        declares = any(strategy.get(name) for name in ("primary", "proposer", "layer_indices"))
        native = _native(merge, PREDICTION_DEPTH if declares else None)
    ngram = None
    if kind in NGRAM_TYPES or kind == "composite":
        name = strategy.get("extender" if kind == "composite" else "proposer")
        ngram = _ngram(merge, kind, proposers[name] if name else {})
    extension = _extension(merge, strategy["extension_policy"]) if kind == "composite" else None
    window = VerifyWindow() if kind == NO_STRATEGY else _window(merge, strategy)
    draft = _draft(merge, strategy, window) if kind == "draft-model" else None
    effective = effective_name(native, ngram, draft)
    return SpeculationPlan(requested, effective, native, ngram, extension, window, draft)


def _native(merge: Merge, depth: int | None) -> NativePlan:
    prefix = "native_mtp_"
    most = merge.take("native.max_draft_tokens", "draft_max_tokens", depth, PREDICTION_DEPTH, "max")
    return NativePlan(
        True,
        most,
        merge.take("native.min_draft_tokens", "draft_min_tokens", None, 0),
        *(
            merge.take(f"native.{name}", prefix + name, None, built_in)
            for name, built_in in (
                ("reject_cooldown_tokens", 0),
                ("suppress_cooldown_drafts", False),
                ("suppress_cooldown_draft_limit", 0),
            )
        ),
    )


def _ngram(merge: Merge, kind: str, proposer: Object) -> NgramPlan:
    low = merge.take("ngram.ngram_min", "ngram_min", proposer.get("ngram_min"), 0, "min")
    high = merge.take("ngram.ngram_max", "ngram_max", proposer.get("ngram_max"), 0, "max")
    declared = proposer.get("max_proposal_tokens")
    field, name = "ngram.max_proposal_tokens", "ngram_max_proposal_tokens"
    # Absent, the proposal is as long as the window that was merged.
    return NgramPlan(
        proposer.get("type", kind), low, high, merge.take(field, name, declared, high, "max")
    )


def _extension(merge: Merge, policy: Object) -> ExtensionPlan:
    most = merge.take(
        "extension.max_tokens", "extension_max_tokens", policy["max_tokens"], 0, "max"
    )
    start = merge.take(
        "extension.initial_tokens",
        "extension_initial_tokens",
        policy.get("initial_tokens"),
        most,
        "max",
    )
    if "extension_initial_tokens" not in merge.overrides:
        # A tighter end pulls a start down that nobody asked for at that level.
        start = min(start, most)
    name = "extension_tail_backoff_proposals"
    backoff = policy.get("tail_backoff_proposals")
    taken = merge.take("extension.tail_backoff_proposals", name, backoff, 0)
    return ExtensionPlan(most, start, taken)


def _window(merge: Merge, strategy: Object) -> VerifyWindow:
    policy = strategy.get("window_policy") or {}
    depth = policy.get("pipeline_depth")
    rows: tuple[tuple[str, Any, int, Direction], ...] = (
        ("min_tokens", policy.get("min_window"), 1, "min"),
        ("max_tokens", policy.get("max_window"), 4, "max"),
        # Leaving the depth out of a window policy declares a depth of one.
        ("pipeline_depth", 1 if policy and depth is None else depth, 1, "max"),
    )
    return VerifyWindow(
        *(
            merge.take(f"verify_window.{name}", f"verify_window_{name}", given, built_in, direction)
            for name, given, built_in, direction in rows
        )
    )


def _draft(merge: Merge, strategy: Object, window: VerifyWindow) -> DraftPlan:
    rows = (
        ("draft_model", "draft_model", strategy["draft_model"], ""),
        ("max_draft_tokens", "draft_max_tokens", None, window.max_tokens),
        ("min_draft_tokens", "draft_min_tokens", None, 0),
        ("acceptance_threshold", "draft_acceptance_threshold", None, None),
        ("split_probability", "draft_split_probability", None, None),
        ("pairing_fault", "pairing_fault", None, "warn_disable"),
    )
    return DraftPlan(*(merge.take(f"draft.{field}", *row) for field, *row in rows))
