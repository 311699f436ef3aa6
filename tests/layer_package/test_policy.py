"""Owns the decision table of generation policies, row by row, and its worked values.

Long because the table is.
"""

from typing import Any

import pytest

from engine.errors import InvalidArgument
from packages.layer_package.errors import GenerationError
from packages.layer_package.policy import Decision, Rejection, resolve_policy
from packages.layer_package.policy_inputs import Backend, IndexShare, PhaseRequest, PolicyOverride
from packages.layer_package.policy_paths import expand_auto, phase_of
from tests.layer_package.generation_cases import GONE, changed, glm_policy

BUDGET, ROWS = 268_435_456, 131_072
PATHS = ("dense", "direct-sparse", "compact-flash", "sparse-chunked")
PROVEN = Backend("emulated", dict.fromkeys(PATHS, 2))
STEPS = {
    "decode": PhaseRequest(1, 4096, top_k=768),
    "short_prefill": PhaseRequest(128, 4096, top_k=768),
    "long_prefill": PhaseRequest(4096, 4096, top_k=768),
    "verify": PhaseRequest(4, 4096, is_verification=True, top_k=768),
}


def evidence(**levels: int) -> Backend:
    """A backend with that evidence by path, underscores for dashes, 2 for the others."""
    return Backend("emulated", {p: levels.get(p.replace("-", "_"), 2) for p in PATHS})


def decide(step: PhaseRequest = STEPS["decode"], **how: Any) -> Decision:
    """A decision on a glm-dsa model, by the whole policy unless told otherwise."""
    given = {"architecture": "glm-dsa", "backend": PROVEN, "generation": glm_policy()}
    return resolve_policy(step, **{**given, **how})


def reasons(decision: Decision) -> list[tuple[str, str, str]]:
    """The rejections as plain triples."""
    return [(r.level, r.path, r.reason) for r in decision.rejected]


@pytest.mark.parametrize(
    ("n_tokens", "accepted"), [(128, True), (512, True), (513, False), (2048, False)]
)
def test_the_worked_dense_masks(n_tokens: int, accepted: bool) -> None:
    step = PhaseRequest(n_tokens, ROWS, top_k=768)
    expected = {128: 67_108_864, 512: 268_435_456, 513: 268_959_744, 2048: 1_073_741_824}
    assert step.dense_mask_bytes == expected[n_tokens]
    decision = decide(step)
    assert decision.phase == "short_prefill"
    assert (decision.selected_path == "dense") == accepted
    if not accepted:
        assert decision.rejected[0] == Rejection("package", "dense", "dense_mask_over_budget")
        used = decision.threshold_used
        assert used is not None
        assert (used.name, used.value, used.source) == ("dense_mask_max_bytes", BUDGET, "package")


def test_the_worked_sidebands() -> None:
    assert PhaseRequest(1, ROWS, top_k=768).sideband_bytes == 3_072
    assert PhaseRequest(128, ROWS, top_k=768).sideband_bytes == 393_216
    assert PhaseRequest(128, ROWS).sideband_bytes is None


PHASES = [
    (PhaseRequest(2048, 2048), "short_prefill"),
    (PhaseRequest(2049, 2049), "long_prefill"),
    (PhaseRequest(1, 2), "decode"),
    (PhaseRequest(1, 1), "short_prefill"),
    (PhaseRequest(1, 2, is_verification=True), "verify"),
    (PhaseRequest(4096, 4096, is_verification=True), "verify"),
]


@pytest.mark.parametrize(("step", "phase"), PHASES, ids=str)
def test_phases_of_the_runtime_default(step: PhaseRequest, phase: str) -> None:
    assert phase_of(step, 2048) == phase
    decision = decide(step, generation=None)
    assert decision.phase == phase
    limit = decision.thresholds["short_prefill_max_tokens"]
    assert (limit.value, limit.source) == (2048, "runtime_default")


def test_a_limit_of_the_package_moves_the_phase() -> None:
    block = changed(glm_policy(), ("/thresholds/short_prefill_max_tokens", 64))
    decision = decide(PhaseRequest(65, 65, top_k=8), generation=block)
    assert (decision.phase, decision.selected_path) == ("long_prefill", "sparse-chunked")
    used = decision.threshold_used
    assert used is not None
    assert (used.name, used.value, used.source) == ("short_prefill_max_tokens", 64, "package")


# path, phase, evidence, accepted at an override level, accepted at the package's, reason there.
EVIDENCE = [
    ("compact-flash", "decode", 0, False, False, "backend_unsupported"),
    ("compact-flash", "decode", 1, True, False, "parity_unproven"),
    ("compact-flash", "decode", 2, True, True, None),
    ("sparse-chunked", "long_prefill", 0, False, False, "backend_unsupported"),
    ("sparse-chunked", "long_prefill", 1, True, False, "parity_unproven"),
    ("sparse-chunked", "long_prefill", 2, True, True, None),
    ("sparse-chunked", "verify", 2, True, True, None),
    ("sparse-chunked", "decode", 3, False, False, "path_not_for_phase"),
    ("direct-sparse", "decode", 0, False, False, "backend_unsupported"),
    ("direct-sparse", "decode", 1, False, False, "parity_unproven"),
    ("direct-sparse", "decode", 2, True, True, None),
    ("dense", "decode", 0, False, False, "backend_unsupported"),
    ("dense", "decode", 1, True, True, None),
]


@pytest.mark.parametrize(
    ("path", "phase", "level", "by_override", "by_package", "reason"),
    EVIDENCE,
    ids=[f"{row[0]}-{row[1]}-{row[2]}" for row in EVIDENCE],
)
def test_what_evidence_a_path_needs(
    path: str, phase: str, level: int, by_override: bool, by_package: bool, reason: str | None
) -> None:
    backend = evidence(**{path.replace("-", "_"): level})
    for who in ("request", "operator"):
        override = {f"{who}_override": PolicyOverride(path=path)}
        decision = decide(STEPS[phase], backend=backend, generation=None, **override)
        assert (decision.selected_level == who) == by_override
        if not by_override:
            assert decision.rejected[0] == Rejection(who, path, reason or "")  # type: ignore[arg-type]
    block = changed(glm_policy(), (f"/policy/{phase}", path))
    decision = decide(STEPS[phase], backend=backend, generation=block)
    assert (decision.selected_level == "package") == by_package
    if not by_package:
        assert decision.rejected[0] == Rejection("package", path, reason or "")
        assert decision.fallback_reason == reason
    else:
        assert decision.selected_path == path
        assert decision.fallback_reason is None


def test_compact_flash_needs_rows_and_top_k() -> None:
    block = changed(glm_policy(), ("/thresholds/compact_flash_min_kv", 4097))
    low = decide(PhaseRequest(1, 4096, top_k=8), generation=block)
    assert reasons(low)[0] == ("package", "compact-flash", "below_compact_flash_min_kv")
    assert low.threshold_used is not None
    assert low.threshold_used.name == "compact_flash_min_kv"
    assert decide(PhaseRequest(1, 4097, top_k=8), generation=block).selected_path == "compact-flash"
    unknown = decide(PhaseRequest(1, 4097), generation=block)
    assert reasons(unknown)[0] == ("package", "compact-flash", "missing_top_k")


# phase, n_tokens, evidence by path, selected, the rejections of the level.
AUTO = [
    ("decode", 1, {}, "compact-flash", []),
    ("decode", 1, {"compact_flash": 0}, "dense", ["compact-flash"]),
    ("short_prefill", 64, {}, "dense", []),
    ("short_prefill", 64, {"dense": 0}, "sparse-chunked", ["dense"]),
    ("long_prefill", 4096, {}, "sparse-chunked", []),
    ("long_prefill", 4096, {"sparse_chunked": 1}, "dense", ["sparse-chunked"]),
    ("verify", 2048, {}, "dense", []),
    ("verify", 2048, {"dense": 0}, "sparse-chunked", ["dense"]),
    ("verify", 2049, {}, "sparse-chunked", []),
    ("verify", 2049, {"sparse_chunked": 0}, "dense", ["sparse-chunked"]),
]


@pytest.mark.parametrize(("phase", "n_tokens", "levels", "path", "rejected"), AUTO)
def test_auto_expands_by_phase(
    phase: str, n_tokens: int, levels: dict[str, int], path: str, rejected: list[str]
) -> None:
    block = changed(glm_policy(), (f"/policy/{phase}", "auto"))
    step = PhaseRequest(n_tokens, 8192, is_verification=phase == "verify", top_k=8)
    decision = decide(step, generation=block, backend=evidence(**levels))
    assert (decision.phase, decision.selected_path) == (phase, path)
    assert decision.selected_level == "package"
    assert [r.path for r in decision.rejected] == rejected
    # Another path of the same wish is no fallback.
    assert decision.fallback_reason is None


def test_auto_never_means_direct_sparse() -> None:
    for phase in STEPS:
        for n_tokens in (1, 4096):
            assert "direct-sparse" not in expand_auto(phase, n_tokens, 2048)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("architecture", "paths"),
    [
        ("glm-dsa", ["compact-flash", "dense", "sparse-chunked", "dense"]),
        ("llama", ["dense"] * 4),
    ],
)
def test_the_runtime_default_of_an_architecture(architecture: str, paths: list[str]) -> None:
    decisions = [
        decide(step, architecture=architecture, generation=None) for step in STEPS.values()
    ]
    assert [d.selected_path for d in decisions] == paths
    assert {d.selected_level for d in decisions} == {"runtime_default"}
    assert {d.package_recommendation for d in decisions} == {None}


def test_levels_go_request_operator_package_default_fallback() -> None:
    request, operator = PolicyOverride(path="direct-sparse"), PolicyOverride(path="sparse-chunked")
    everything = {"request_override": request, "operator_override": operator}
    step = STEPS["long_prefill"]
    steps_down = [
        ({}, "request", "direct-sparse"),
        ({"direct_sparse": 0}, "operator", "sparse-chunked"),
    ]
    for levels, level, path in steps_down:
        decision = decide(step, backend=evidence(**levels), **everything)
        assert (decision.selected_level, decision.selected_path) == (level, path)
        assert decision.package_overridden_by == (
            None if path == decision.package_recommendation else level
        )
    nothing = Backend("bare")
    decision = decide(step, backend=nothing, **everything)
    assert reasons(decision) == [
        ("request", "direct-sparse", "backend_unsupported"),
        ("operator", "sparse-chunked", "backend_unsupported"),
        ("package", "sparse-chunked", "backend_unsupported"),
        ("runtime_default", "sparse-chunked", "backend_unsupported"),
    ]
    assert decision.selected_level == "correctness_fallback"
    assert decision.selected_path == "fallback"
    assert decision.fallback_reason == "backend_unsupported"


def test_the_fallback_runs_in_chunks_of_the_budget() -> None:
    nothing = Backend("bare")
    step = PhaseRequest(2048, ROWS, top_k=8)
    assert decide(step, backend=nothing).fallback_chunk_tokens == 512
    wide = PhaseRequest(4, BUDGET, top_k=8)
    assert decide(wide, backend=nothing).fallback_chunk_tokens == 1
    block = changed(glm_policy(), ("/thresholds/dense_mask_max_bytes", GONE))
    assert decide(step, backend=nothing, generation=block).fallback_chunk_tokens == 2048
    # Over its budget, dense runs as the fallback; elsewhere there are no chunks.
    assert decide(step).fallback_chunk_tokens == 512
    assert decide(STEPS["short_prefill"]).fallback_chunk_tokens is None
    named = decide(step, operator_override=PolicyOverride(path="fallback"))
    assert (named.selected_level, named.fallback_reason) == ("operator", None)


def test_m77_an_unknown_value_is_reported_and_the_next_level_used() -> None:
    block = changed(glm_policy(), ("/policy/decode", "metal-flash"))
    decision = decide(generation=block, architecture="llama")
    assert (decision.selected_level, decision.selected_path) == ("runtime_default", "dense")
    assert decision.package_recommendation == "metal-flash"
    assert decision.fallback_reason == "unsupported_policy_value"
    assert [(u.kind, u.pointer, u.value) for u in decision.unsupported] == [
        ("unsupported_policy_value", "/generation/policy/decode", "metal-flash")
    ]
    # Another phase of the same package is untouched.
    assert decide(STEPS["long_prefill"], generation=block).selected_level == "package"


def test_an_unknown_profile_skips_the_level_but_not_the_thresholds() -> None:
    block = changed(
        glm_policy(),
        ("/policy/profile", "glm-dsa-v9"),
        ("/policy/indexshare", "auto"),
        ("/thresholds/short_prefill_max_tokens", 64),
    )
    decision = decide(PhaseRequest(65, 65, top_k=8), generation=block)
    assert (decision.phase, decision.selected_level) == ("long_prefill", "runtime_default")
    assert decision.fallback_reason == "unsupported_policy_profile"
    assert decision.indexshare_policy == "required"
    assert {state.state for state in decision.experimental.values()} == {"off"}


@pytest.mark.parametrize(
    "override",
    [
        PolicyOverride(path="metal-flash"),
        PolicyOverride(phases={"decode": "Dense"}),
        PolicyOverride(phases={"prefill": "dense"}),
        PolicyOverride(experimental={"turbo": "on"}),
        PolicyOverride(experimental={"moe_weighted_down": "yes"}),
    ],
    ids=["path", "phase-path", "phase", "switch", "switch-value"],
)
def test_an_unknown_override_is_refused(override: PolicyOverride) -> None:
    for who in ("request_override", "operator_override"):
        with pytest.raises(GenerationError) as caught:
            decide(**{who: override})
        assert caught.value.kind == "unsupported_policy_override"


def test_an_override_of_one_phase_leaves_the_others() -> None:
    override = PolicyOverride(phases={"decode": "dense"}, thresholds={"dense_mask_max_bytes": 1})
    decision = decide(operator_override=override)
    assert reasons(decision) == [("operator", "dense", "dense_mask_over_budget")]
    assert decision.thresholds["dense_mask_max_bytes"].source == "operator"
    assert decide(STEPS["verify"], operator_override=override).selected_path == "sparse-chunked"
    with pytest.raises(GenerationError) as caught:
        decide(operator_override=PolicyOverride(thresholds={"dense_mask_max_bytes": -1}))
    assert caught.value.kind == "invalid_threshold"


def test_shared_layers_without_state_reject_every_sparse_path() -> None:
    lost = IndexShare("shared", False)
    for path in ("compact-flash", "direct-sparse", "sparse-chunked"):
        override = PolicyOverride(path=path)
        decision = decide(STEPS["verify"], indexshare=lost, request_override=override)
        assert reasons(decision)[0] == ("request", path, "indexshare_state_missing")
        assert not decision.indexshare_recompute
        allowed = decide(
            STEPS["verify"],
            indexshare=lost,
            request_override=override,
            allow_indexshare_recompute=True,
        )
        assert (allowed.selected_path, allowed.indexshare_recompute) == (path, True)
        assert allowed.indexshare_policy == "required"
    assert decide(indexshare=lost).selected_path == "fallback"
    for share in (IndexShare("shared", True), IndexShare("full"), IndexShare()):
        decision = decide(indexshare=share)
        assert (decision.selected_path, decision.indexshare_recompute) == ("compact-flash", False)


@pytest.mark.parametrize(
    ("value", "barred"), [("required", True), ("auto", False), ("never", True), (GONE, True)]
)
def test_the_packages_indexshare_word(value: Any, barred: bool) -> None:
    block = changed(glm_policy(), ("/policy/indexshare", value))
    decision = decide(generation=block, indexshare=IndexShare("shared"))
    assert (decision.selected_path == "fallback") == barred
    assert decision.indexshare_recompute != barred
    assert bool(decision.unsupported) == (value == "never")


SWITCHES = [
    ("evidence-gated", 3, None, ("on", "evidence_proven")),
    ("evidence-gated", 2, None, ("off", "evidence_missing")),
    ("off", 3, None, ("off", "policy_off")),
    (GONE, 3, None, ("off", "not_requested")),
    ("always", 3, None, ("off", "unsupported_policy_value")),
    ("off", 0, "on", ("on", "explicit_override")),
    ("evidence-gated", 3, "off", ("off", "explicit_override")),
    ("off", 2, "evidence-gated", ("off", "evidence_missing")),
]


@pytest.mark.parametrize(("value", "win", "override", "state"), SWITCHES)
def test_experimental_switches(
    value: Any, win: int, override: str | None, state: tuple[str, str]
) -> None:
    name = "selected_row_flash"
    block = changed(glm_policy(), (f"/policy/experimental/{name}", value))
    backend = Backend("emulated", PROVEN.paths, {name: win})
    asked = PolicyOverride(experimental={} if override is None else {name: override})
    decision = decide(generation=block, backend=backend, operator_override=asked)
    assert (decision.experimental[name].state, decision.experimental[name].reason) == state


def test_an_unknown_switch_of_the_package_is_off_and_listed() -> None:
    block = changed(glm_policy(), ("/policy/experimental/turbo", "evidence-gated"))
    decision = decide(generation=block)
    assert decision.experimental["turbo"].state == "off"
    assert [u.pointer for u in decision.unsupported] == ["/generation/policy/experimental/turbo"]


@pytest.mark.parametrize("sizes", [(0, 1, None), (1, 0, None), (1, 1, 0)])
def test_an_empty_step_is_refused(sizes: tuple[int, int, int | None]) -> None:
    with pytest.raises(InvalidArgument):
        PhaseRequest(sizes[0], sizes[1], top_k=sizes[2])
