"""Owns which speculative strategy runs and how the levels merge into its plan.

It must not know how drafts are made. The strategy goes first: command line, the model's entry,
global defaults, package, built-in; then every field by the same order. `spec_default = false` turns
off all that `auto` would choose, the package's default too: whoever writes it wants no speculation
by itself. A package without a recommendation is never sped up by its tensors alone, for its writer
leaves the recommendation out where the prediction blocks are not usable.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from packages.layer_package.errors import GenerationError, Issue, Report
from packages.layer_package.generation_fields import shown
from packages.layer_package.merging import Merge
from packages.layer_package.overrides import merge_levels
from packages.layer_package.plan import SourceLevel, SpeculationPlan, check_plan
from packages.layer_package.plan_blocks import NO_STRATEGY, build_plan
from packages.layer_package.speculation import STRATEGY_TYPES
from packages.layer_package.speculation_proposers import NGRAM_TYPES

_MTP_IDS = ("mtp", "native-mtp-n1")

Object = Mapping[str, Any]


def resolve_speculation(
    *,
    packaged: bool,
    generation: Object | None = None,
    cli: Object | None = None,
    model: Object | None = None,
    defaults: Object | None = None,
    native_mtp_proven: bool = False,
    tighten_only: bool = False,
    pairing: Callable[[str], str | None] | None = None,
    report: Report | None = None,
) -> SpeculationPlan:
    """The plan of one model. `generation` is the manifest's checked block, None for a direct GGUF
    (`packaged` false); `native_mtp_proven` says that its tensors hold a prediction block.

    `cli`, `model`, `defaults` hold the fields of `overrides.py`. `pairing` answers why the draft
    model of a reference does not fit, None when it does. Notes and warnings go to the plan and to
    `report`. GenerationError of every kind of the contract's precedence table and bounds.
    """
    merge = Merge(merge_levels(cli, model, defaults), tighten_only)
    block = (generation or {}).get("speculative_decoding") or {}
    requested, level = _requested(merge)
    if requested == "auto":
        strategy = _automatic(block, packaged, native_mtp_proven, merge)
    else:
        strategy = _named(requested, level, block, packaged, native_mtp_proven, merge)
    plan = SpeculationPlan(requested, "disabled")
    if strategy is not None:
        plan = build_plan(requested, strategy, block, merge)
        check_plan(plan)
        plan = _paired(plan, pairing, merge)
        merge.note_unused()
    plan = replace(plan, sources=dict(merge.sources), notes=tuple(merge.notes))
    if report is not None:
        report.issues.extend(plan.notes)
    return plan


def _requested(merge: Merge) -> tuple[str, SourceLevel]:
    """The strategy asked for, `auto` when nobody does, and by whom."""
    override = merge.overrides.get("strategy")
    if override is None:
        return "auto", "built-in"
    name = cast(str, override.value)
    return ("mtp" if name == "native-mtp-n1" else name), override.level


def _automatic(block: Object, packaged: bool, proven: bool, merge: Merge) -> Object | None:
    """What `auto` stands for, as a package would declare it; None where someone turned it off."""
    default = block.get("default")
    switch = merge.overrides.get("spec_default")
    if switch is not None and switch.value is False:
        merge.sources["strategy"] = switch.level
        if default is not None:
            merge.overridden(f"{switch.level} sets spec_default false for {shown(default)}")
        return None
    merge.sources["strategy"] = "built-in" if default is None else "package"
    if default is not None:
        return _declared(block["strategies"], default)
    return {"type": "native-mtp" if proven and not packaged else NO_STRATEGY}


def _named(
    requested: str,
    level: SourceLevel,
    block: Object,
    packaged: bool,
    proven: bool,
    merge: Merge,
) -> Object | None:
    """The strategy of that name, as a package declares one; None for `disabled`."""
    strategies: Object = block.get("strategies") or {}
    default = block.get("default")
    merge.sources["strategy"] = level
    chosen_id, strategy = requested, strategies.get(requested)
    if requested == "mtp":
        # A package may hold it under the older id; another type under these ids is no native MTP.
        found = ((i, strategies.get(i) or {}) for i in _MTP_IDS)
        natives = [(i, entry) for i, entry in found if entry.get("type") == "native-mtp"]
        chosen_id, strategy = natives[0] if natives else (requested, None)
    if default is not None and chosen_id != default:
        merge.overridden(f"{level} sets strategy {shown(requested)} for {shown(default)}")
    if requested == "disabled":
        return None
    if strategy is not None:
        return _declared(strategies, chosen_id)
    if requested == "mtp":
        if proven or _declares_native(block):
            return {"type": "native-mtp"}
        raise GenerationError(
            "native_mtp_unproven", "strategy mtp: neither package nor tensors prove native MTP"
        )
    if requested in NGRAM_TYPES and not packaged:
        if {"ngram_min", "ngram_max"} <= merge.overrides.keys():
            return {"type": requested}
        raise GenerationError(
            "speculative_bounds_required",
            f"strategy {requested} of a direct GGUF needs ngram_min and ngram_max",
        )
    raise GenerationError(
        "strategy_not_declared", f"strategy {shown(requested)} ({level}) is not declared"
    )


def _declared(strategies: Object, name: str) -> Object:
    strategy = cast(Object, strategies[name])
    if strategy["type"] not in STRATEGY_TYPES:
        raise GenerationError(
            "unsupported_speculative_strategy_type",
            f"strategy {shown(name)} is of type {shown(strategy['type'])}",
        )
    return strategy


def _declares_native(block: Object) -> bool:
    entries = [*(block.get("proposers") or {}).values(), *(block.get("strategies") or {}).values()]
    return any(e.get("type") == "native-mtp" and e.get("layer_indices") for e in entries)


def _paired(
    plan: SpeculationPlan, pairing: Callable[[str], str | None] | None, merge: Merge
) -> SpeculationPlan:
    """The plan after its draft model was held against the target."""
    draft = plan.draft
    if draft is None:
        return plan
    if pairing is None:
        merge.note("draft_pairing_unchecked", "nobody compared the draft model with the target")
        return plan
    reason = pairing(draft.draft_model)
    if reason is None:
        return plan
    if draft.pairing_fault == "fail_closed":
        raise GenerationError("incompatible_draft_model", f"draft model: {reason}")
    merge.notes.append(Issue("incompatible_draft_model", reason, severity="warning"))
    if draft.pairing_fault == "fail_open":
        return plan
    merge.sources = {"strategy": merge.sources["strategy"]}
    return SpeculationPlan(plan.requested_strategy, "disabled")
