"""Owns the telemetry of policy decisions: what a record holds, and when one is written."""

import json
from typing import Any

from packages.layer_package.policy import Decision, resolve_policy
from packages.layer_package.policy_inputs import Backend, IndexShare, PhaseRequest, PolicyOverride
from packages.layer_package.telemetry import MAX_CONTEXTS, PolicyTelemetry, record_of
from tests.layer_package.generation_cases import changed, glm_policy

MEMBERS = [
    "profile", "phase", "selected_path", "selected_level", "package_recommendation",
    "package_overridden_by", "rejected", "fallback_path", "fallback_reason", "backend", "n_tokens",
    "n_kv", "top_k", "indexshare_role", "indexshare_policy", "estimated_dense_mask_bytes",
    "dense_mask_avoided_bytes", "estimated_sideband_bytes", "threshold_used", "experimental",
    "unsupported", "runtime_version", "abi_version",
]  # fmt: skip
FULL = Backend("emulated", {"dense": 1, "compact-flash": 2, "sparse-chunked": 2})


def decide(n_tokens: int = 1, n_kv: int = 131_072, **how: Any) -> Decision:
    """A decision on a glm-dsa model by the whole policy."""
    given = {"architecture": "glm-dsa", "backend": FULL, "generation": glm_policy()}
    return resolve_policy(PhaseRequest(n_tokens, n_kv, top_k=768), **{**given, **how})


def recorded(decision: Decision) -> dict[str, Any]:
    """Its record."""
    return record_of(decision, runtime_version="0.1.0", abi_version="0.1.39")


def test_a_record_of_the_recommended_path() -> None:
    record = recorded(decide())
    assert list(record) == MEMBERS
    expected = {
        "profile": "glm-dsa-v1",
        "phase": "decode",
        "selected_path": "compact-flash",
        "selected_level": "package",
        "package_recommendation": "compact-flash",
        "package_overridden_by": None,
        "rejected": [],
        "fallback_path": None,
        "fallback_reason": None,
        "backend": "emulated",
        "n_tokens": 1,
        "n_kv": 131_072,
        "top_k": 768,
        "indexshare_role": None,
        "indexshare_policy": "required",
        "estimated_dense_mask_bytes": 524_288,
        "dense_mask_avoided_bytes": 524_288,
        "estimated_sideband_bytes": 3_072,
        "threshold_used": {"name": "compact_flash_min_kv", "value": 1, "source": "package"},
        "unsupported": [],
        "runtime_version": "0.1.0",
        "abi_version": "0.1.39",
    }
    assert {name: record[name] for name in expected} == expected
    assert record["experimental"]["selected_row_flash"] == {
        "state": "off",
        "reason": "evidence_missing",
    }
    json.dumps(record, allow_nan=False)


def test_a_record_of_an_override_and_of_a_fallback() -> None:
    record = recorded(decide(operator_override=PolicyOverride(path="dense")))
    assert record["package_overridden_by"] == "operator"
    assert record["dense_mask_avoided_bytes"] == 0
    same = recorded(decide(operator_override=PolicyOverride(path="compact-flash")))
    assert (same["selected_level"], same["package_overridden_by"]) == ("operator", None)
    record = recorded(decide(128, backend=Backend("bare")))
    assert record["fallback_path"] == "fallback"
    assert record["fallback_reason"] == "backend_unsupported"
    assert record["dense_mask_avoided_bytes"] == 67_108_864
    assert record["rejected"][0] == {
        "level": "package",
        "path": "dense",
        "reason": "backend_unsupported",
    }
    # Level 4 took another path than the package wanted.
    block = changed(glm_policy(), ("/policy/long_prefill", "compact-flash"))
    record = recorded(decide(4096, generation=block, backend=Backend("b", {"sparse-chunked": 2})))
    assert record["fallback_path"] == "sparse-chunked"
    assert record["selected_level"] == "runtime_default"


def test_recomputing_is_recorded_in_place_of_the_policy() -> None:
    how = {"indexshare": IndexShare("shared"), "allow_indexshare_recompute": True}
    record = recorded(decide(**how))
    assert record["indexshare_policy"] == "indexshare_recompute"
    assert record["indexshare_role"] == "shared"


def test_a_record_holds_no_text_of_the_package_but_plain_names() -> None:
    secret = "/srv/someone/prompt: tell me"
    block = changed(
        glm_policy(),
        ("/policy/decode", secret),
        (f"/policy/experimental/{secret.replace('/', '.')}", "off"),
    )
    text = json.dumps(recorded(decide(generation=block)))
    assert "someone" not in text
    assert "tell me" not in text
    block = changed(glm_policy(), ("/policy/profile", secret))
    assert "someone" not in json.dumps(recorded(decide(generation=block)))


def test_a_record_for_each_change_and_repeats_are_counted() -> None:
    records: list[dict[str, Any]] = []
    telemetry = PolicyTelemetry(records.append, runtime_version="0.1.0", abi_version="0.1.39")
    assert telemetry.observe("a", decide(n_kv=100)) is records[0]
    # Every decoded token sees one more row: no decision changed.
    for n_kv in range(101, 110):
        assert telemetry.observe("a", decide(n_kv=n_kv)) is None
    assert (len(records), telemetry.repeats("a", "decode")) == (1, 9)
    # Another context and another phase of this one have records of their own.
    telemetry.observe("b", decide(n_kv=110))
    telemetry.observe("a", decide(128, 128))
    assert len(records) == 3
    assert telemetry.observe("a", decide(n_kv=111)) is None
    # A change of outcome, of a reason alone, and back again are changes.
    weak = Backend("emulated", {"dense": 1, "compact-flash": 1})
    bare = Backend("emulated", {"dense": 1})
    for backend in (weak, bare, FULL):
        assert telemetry.observe("a", decide(backend=backend)) is not None
    assert len(records) == 6
    assert telemetry.repeats("a", "decode") == 0
    assert telemetry.close("a") == {"decode": 0, "short_prefill": 0}
    assert telemetry.observe("a", decide()) is not None


def test_contexts_that_are_never_closed_are_bounded() -> None:
    records: list[dict[str, Any]] = []
    telemetry = PolicyTelemetry(records.append, runtime_version="0.1.0", abi_version="0.1.39")
    decision = decide()
    for context in range(MAX_CONTEXTS + 1):
        telemetry.observe(str(context), decision)
    assert telemetry.observe("1", decision) is None
    assert telemetry.observe("0", decision) is not None
