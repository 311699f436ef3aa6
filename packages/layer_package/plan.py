"""Owns the resolved speculation plan and the invariants it must satisfy after merging.

It must not know who asked for what: `precedence.py` builds it. Tokens everywhere, unless said.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from packages.layer_package.errors import GenerationError, Issue
from packages.layer_package.speculation_proposers import HISTORY_SCOPE, window_fault
from packages.layer_package.speculation_windows import MAX_PIPELINE_DEPTH

SourceLevel = Literal["cli", "model", "defaults", "package", "built-in"]
PAIRING_FAULTS = ("warn_disable", "fail_open", "fail_closed")


@dataclass(frozen=True, slots=True)
class NativePlan:
    """Native multi-token prediction; `reject_cooldown_tokens` are decoded without drafts after a
    rejection, and with `suppress_cooldown_drafts` at most the limit of drafts is suppressed."""

    enabled: bool = False
    max_draft_tokens: int = 0
    min_draft_tokens: int = 0
    reject_cooldown_tokens: int = 0
    suppress_cooldown_drafts: bool = False
    suppress_cooldown_draft_limit: int = 0


@dataclass(frozen=True, slots=True)
class NgramPlan:
    """An n-gram proposer: match window, and how much it may propose."""

    proposer: Literal["ngram-cache", "ngram-suffix"]
    ngram_min: int
    ngram_max: int
    max_proposal_tokens: int
    history_scope: str = HISTORY_SCOPE


@dataclass(frozen=True, slots=True)
class ExtensionPlan:
    """The n-gram tail after the native prefix: where its width starts, ends and how it shrinks."""

    max_tokens: int
    initial_tokens: int
    tail_backoff_proposals: int = 0


@dataclass(frozen=True, slots=True)
class VerifyWindow:
    """Tokens of one verification, and windows in flight."""

    min_tokens: int = 1
    max_tokens: int = 4
    pipeline_depth: int = 1


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A draft model by reference; probabilities from 0 to 1, None where nobody gave one."""

    draft_model: str
    max_draft_tokens: int
    min_draft_tokens: int = 0
    acceptance_threshold: float | None = None
    split_probability: float | None = None
    pairing_fault: str = "warn_disable"


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """What a runtime is started with. `sources` maps `strategy` and `block.field` of the blocks in
    use to the level it came from; `notes` are what a runtime logs when it starts."""

    requested_strategy: str
    effective_strategy: str
    native: NativePlan = NativePlan()
    ngram: NgramPlan | None = None
    extension: ExtensionPlan | None = None
    verify_window: VerifyWindow = VerifyWindow()
    draft: DraftPlan | None = None
    sources: Mapping[str, SourceLevel] = field(default_factory=dict)
    notes: tuple[Issue, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Its members as a JSON object."""
        return asdict(self)


def effective_name(native: NativePlan, ngram: NgramPlan | None, draft: DraftPlan | None) -> str:
    """The effective strategy that blocks make."""
    if draft is not None:
        return "draft-model"
    if native.enabled:
        return f"native-mtp+{ngram.proposer}" if ngram is not None else "native-mtp"
    return "disabled" if ngram is None else ngram.proposer


def check_plan(plan: SpeculationPlan) -> None:
    """GenerationError of the first broken bound, `invalid_speculative_plan` if it has no kind."""
    native, ngram, extension, window = plan.native, plan.ngram, plan.extension, plan.verify_window
    if plan.effective_strategy != effective_name(native, ngram, plan.draft):
        _fail("invalid_speculative_plan", f"is not {plan.effective_strategy} by its blocks")
    for block, drafts in (("native", native), ("draft", plan.draft)):
        if drafts is not None and not 0 <= drafts.min_draft_tokens <= drafts.max_draft_tokens:
            _fail(
                "invalid_speculative_plan",
                f"{block} drafts {drafts.min_draft_tokens} to {drafts.max_draft_tokens} tokens",
            )
    if native.enabled and native.max_draft_tokens < 1:
        _fail("invalid_speculative_plan", "native prediction without a draft token")
    cooldowns = (native.reject_cooldown_tokens, native.suppress_cooldown_draft_limit)
    if min(cooldowns) < 0:
        _fail("invalid_speculative_plan", f"cooldown of {min(cooldowns)} tokens, needs 0 or more")
    if ngram is not None:
        kind = window_fault(ngram.proposer, ngram.ngram_min, ngram.ngram_max)
        if kind is not None:
            _fail(kind, f"{ngram.proposer} window {ngram.ngram_min} to {ngram.ngram_max} tokens")
        if ngram.max_proposal_tokens < 1:
            most = ngram.max_proposal_tokens
            _fail("invalid_ngram_proposer_max_tokens", f"proposals of {most} tokens, needs 1")
    if extension is not None:
        _check_extension(plan, extension)
    _check_window(window)
    if plan.draft is not None:
        _check_draft(plan.draft)


def _check_extension(plan: SpeculationPlan, extension: ExtensionPlan) -> None:
    if not plan.native.enabled or plan.ngram is None:
        _fail("invalid_speculative_plan", "an extension needs native MTP and an n-gram proposer")
    if not 1 <= extension.initial_tokens <= extension.max_tokens:
        text = f"extension of {extension.initial_tokens} up to {extension.max_tokens} tokens"
        _fail("invalid_extension_policy_tokens", text)
    if extension.tail_backoff_proposals < 0:
        text = f"backoff of {extension.tail_backoff_proposals} tokens, needs 0 or more"
        _fail("invalid_extension_policy_tokens", text)


def _check_window(window: VerifyWindow) -> None:
    if window.min_tokens < 1 or window.max_tokens < 1:
        text = f"verify window {window.min_tokens} to {window.max_tokens} tokens, needs 1 or more"
        _fail("invalid_window_policy_zero", text)
    if window.min_tokens > window.max_tokens:
        text = f"verify window {window.min_tokens} to {window.max_tokens} tokens"
        _fail("invalid_window_policy_bounds", text)
    if not 1 <= window.pipeline_depth <= MAX_PIPELINE_DEPTH:
        text = f"pipeline depth {window.pipeline_depth}, needs 1 to {MAX_PIPELINE_DEPTH} windows"
        _fail("invalid_pipeline_depth", text)


def _check_draft(draft: DraftPlan) -> None:
    if not draft.draft_model.strip():
        _fail("missing_draft_model", "needs a reference of a draft model")
    if draft.max_draft_tokens < 1:
        _fail("invalid_speculative_plan", f"drafts of {draft.max_draft_tokens} tokens, needs 1")
    for name in ("acceptance_threshold", "split_probability"):
        value = getattr(draft, name)
        # Written so that NaN fails too.
        if value is not None and not 0.0 <= value <= 1.0:
            _fail("invalid_speculative_plan", f"draft {name} {value}, needs 0 to 1")
    if draft.pairing_fault not in PAIRING_FAULTS:
        _fail("invalid_speculative_plan", f"pairing_fault {draft.pairing_fault!r} is unknown")


def _fail(kind: str, message: str) -> None:
    raise GenerationError(kind, f"speculation plan: {message}")
