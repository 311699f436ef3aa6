"""Owns the choice of an attention path for one step, the decision table of generation policies.

It must not know kernels: a backend is a name with evidence. Levels go request, operator, package,
runtime default, correctness fallback; the first acceptable path is taken, every rejection is kept.
`auto` at an override level has that level's bound of evidence. A fallback is a choice below the
first level that wanted something; its reason is what became of that level's first wish.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packages.layer_package.generation import KNOWN_PROFILES
from packages.layer_package.policy_inputs import (
    Backend,
    IndexShare,
    Level,
    PackagePolicy,
    Phase,
    PhaseRequest,
    PolicyOverride,
    Threshold,
    Unsupported,
    plain_name,
    read_package_policy,
    thresholds_in_force,
)
from packages.layer_package.policy_paths import SPARSE_PATHS, PathTest, expand_auto, phase_of
from packages.layer_package.policy_switches import SwitchState, switch_states

GLM_DSA_ARCHITECTURE = "glm-dsa"
_GLM_DSA_DEFAULTS = {
    "decode": "compact-flash",
    "short_prefill": "dense",
    "long_prefill": "sparse-chunked",
    "verify": "auto",
}
_THRESHOLD_OF_REASON = {
    "dense_mask_over_budget": "dense_mask_max_bytes",
    "below_compact_flash_min_kv": "compact_flash_min_kv",
}
_THRESHOLD_OF_PATH = {"dense": "dense_mask_max_bytes", "compact-flash": "compact_flash_min_kv"}


@dataclass(frozen=True, slots=True)
class Rejection:
    """A path that was wanted at a level and not taken."""

    level: Level
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One resolved step. `fallback_chunk_tokens` says in which chunks of tokens `fallback` runs
    dense attention (it may exceed the step); None for every other path."""

    request: PhaseRequest
    backend: str
    phase: Phase
    profile: str | None
    selected_path: str
    selected_level: Level
    package_recommendation: str | None
    package_overridden_by: Level | None
    rejected: tuple[Rejection, ...]
    fallback_reason: str | None
    fallback_chunk_tokens: int | None
    indexshare: IndexShare
    indexshare_policy: str
    indexshare_recompute: bool
    thresholds: Mapping[str, Threshold]
    threshold_used: Threshold | None
    experimental: Mapping[str, SwitchState]
    unsupported: tuple[Unsupported, ...]


def resolve_policy(
    request: PhaseRequest,
    *,
    architecture: str,
    backend: Backend,
    generation: Mapping[str, Any] | None = None,
    request_override: PolicyOverride | None = None,
    operator_override: PolicyOverride | None = None,
    indexshare: IndexShare | None = None,
    allow_indexshare_recompute: bool = False,
) -> Decision:
    """Choose the path of one step; `generation` is the manifest's checked block.

    GenerationError `unsupported_policy_override` or `invalid_threshold` for an override only.
    """
    given: tuple[tuple[Level, PolicyOverride | None], ...] = (
        ("request", request_override),
        ("operator", operator_override),
    )
    overrides = {level: override for level, override in given if override is not None}
    for level, override in overrides.items():
        override.check(level)
    package = read_package_policy(generation)
    thresholds = thresholds_in_force(package, overrides)
    phase = phase_of(request, thresholds["short_prefill_max_tokens"].value)
    share = indexshare or IndexShare()
    share_policy = package.indexshare or "required"
    state_missing = share.role == "shared" and not share.state_available
    barred = state_missing and share_policy == "required" and not allow_indexshare_recompute
    test = PathTest(request, backend, phase, thresholds, barred)
    wishes = _wishes(phase, architecture, package, overrides)
    level, path, rejected = _choose(wishes, test)
    recommendation = package.phases.get(phase)
    named = dict(wishes).get(level)
    overridden = recommendation is not None and level in overrides and named != recommendation
    return Decision(
        request=request,
        backend=backend.name,
        phase=phase,
        profile=None if package.profile is None else plain_name(package.profile),
        selected_path=path,
        selected_level=level,
        package_recommendation=None if recommendation is None else plain_name(recommendation),
        package_overridden_by=level if overridden else None,
        rejected=rejected,
        fallback_reason=_fallback_reason(level, package, phase, wishes, rejected),
        fallback_chunk_tokens=_chunk_tokens(request, thresholds) if path == "fallback" else None,
        indexshare=share,
        indexshare_policy=share_policy,
        indexshare_recompute=state_missing and path in SPARSE_PATHS,
        thresholds=thresholds,
        threshold_used=_threshold_used(phase, path, rejected, thresholds),
        experimental=switch_states(package, overrides, backend),
        unsupported=package.unsupported,
    )


def _chunk_tokens(request: PhaseRequest, thresholds: Mapping[str, Threshold]) -> int:
    """Tokens whose dense mask keeps the budget, at least one; all of them without a budget."""
    budget = thresholds.get("dense_mask_max_bytes")
    return request.n_tokens if budget is None else max(1, budget.value // (4 * request.n_kv))


def _wishes(
    phase: Phase,
    architecture: str,
    package: PackagePolicy,
    overrides: Mapping[Level, PolicyOverride],
) -> list[tuple[Level, str]]:
    """What each level names for the phase, highest first."""
    defaults = _GLM_DSA_DEFAULTS if architecture == GLM_DSA_ARCHITECTURE else {}
    named: list[tuple[Level, str | None]] = [
        *((level, override.path_for(phase)) for level, override in overrides.items()),
        ("package", package.usable.get(phase)),
        ("runtime_default", defaults.get(phase, "dense")),
    ]
    return [(level, path) for level, path in named if path is not None]


def _choose(
    wishes: list[tuple[Level, str]], test: PathTest
) -> tuple[Level, str, tuple[Rejection, ...]]:
    rejected: list[Rejection] = []
    limit = test.thresholds["short_prefill_max_tokens"].value
    for level, named in wishes:
        auto = expand_auto(test.phase, test.request.n_tokens, limit)
        for path in auto if named == "auto" else (named,):
            reason = test.reason_against(path, level)
            if reason is None:
                return level, path, tuple(rejected)
            rejected.append(Rejection(level, path, reason))
    return "correctness_fallback", "fallback", tuple(rejected)


def _fallback_reason(
    level: Level,
    package: PackagePolicy,
    phase: Phase,
    wishes: list[tuple[Level, str]],
    rejected: tuple[Rejection, ...],
) -> str | None:
    """What became of the first wish, when the choice was made below it."""
    first = wishes[0][0]
    if first == "runtime_default" and phase in package.phases:
        known = package.profile in KNOWN_PROFILES
        return "unsupported_policy_value" if known else "unsupported_policy_profile"
    return None if level == first else rejected[0].reason


def _threshold_used(
    phase: Phase,
    path: str,
    rejected: tuple[Rejection, ...],
    thresholds: Mapping[str, Threshold],
) -> Threshold | None:
    """The threshold that decided: of the first rejection, else of the phase, else of the path."""
    for rejection in rejected:
        name = _THRESHOLD_OF_REASON.get(rejection.reason)
        if name is not None:
            return thresholds[name]
    if phase != "decode":
        return thresholds["short_prefill_max_tokens"]
    return thresholds.get(_THRESHOLD_OF_PATH.get(path, ""))
