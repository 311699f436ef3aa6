"""Owns when an attention path is acceptable, the phase of a step, and what `auto` stands for.

It must not know levels beyond which of them ease the evidence (`policy.py` walks them).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from packages.layer_package.policy_inputs import Backend, Level, Phase, PhaseRequest, Threshold

SPARSE_PATHS = ("compact-flash", "sparse-chunked", "direct-sparse")


@dataclass(frozen=True, slots=True)
class PathTest:
    """What a path is tested against; `sparse_barred` when shared top-k state is missing."""

    request: PhaseRequest
    backend: Backend
    phase: Phase
    thresholds: Mapping[str, Threshold]
    sparse_barred: bool

    def reason_against(self, path: str, level: Level) -> str | None:
        """None when the path is acceptable at that level, else the first reason."""
        if path == "fallback":
            return None
        if path in SPARSE_PATHS and self.sparse_barred:
            return "indexshare_state_missing"
        # Whoever overrides may try what has no proven parity, but not by naming direct-sparse.
        eased = level in ("request", "operator") and path != "direct-sparse"
        evidence = self.backend.paths.get(path, 0)
        if evidence < 1:
            return "backend_unsupported"
        if path != "dense" and evidence < (1 if eased else 2):
            return "parity_unproven"
        if path == "compact-flash":
            least = self.thresholds.get("compact_flash_min_kv")
            if least is not None and self.request.n_kv < least.value:
                return "below_compact_flash_min_kv"
            return "missing_top_k" if self.request.top_k is None else None
        if path == "sparse-chunked" and self.phase == "decode":
            return "path_not_for_phase"
        budget = self.thresholds.get("dense_mask_max_bytes")
        if path == "dense" and budget and self.request.dense_mask_bytes > budget.value:
            return "dense_mask_over_budget"
        return None


def phase_of(request: PhaseRequest, short_prefill_max_tokens: int) -> Phase:
    """The phase of a step; the limit is inclusive."""
    if request.is_verification:
        return "verify"
    if request.n_tokens == 1 and request.n_kv > 1:
        return "decode"
    return "short_prefill" if request.n_tokens <= short_prefill_max_tokens else "long_prefill"


def expand_auto(phase: Phase, n_tokens: int, short_prefill_max_tokens: int) -> tuple[str, ...]:
    """The paths that `auto` stands for, in order; `direct-sparse` is never among them."""
    if phase == "decode":
        return ("compact-flash", "dense")
    if phase == "long_prefill" or (phase == "verify" and n_tokens > short_prefill_max_tokens):
        return ("sparse-chunked", "dense")
    # A verification that dense refused once is not asked again after sparse-chunked.
    return ("dense", "sparse-chunked")
