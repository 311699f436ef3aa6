"""Owns the contract of the profile `glm-dsa-v1`."""

import math
import time
from typing import Any

import pytest

from packages.layer_package.errors import GenerationError, Report
from packages.layer_package.glm_dsa import (
    ATTENTION_TENSORS,
    DENSE_TENSORS,
    EXPERT_TENSORS,
    INDEXER_TENSORS,
    MAX_FAILURES_LISTED,
    NEXTN_TENSORS,
    POSITIVE_INTEGERS,
    GlmDsaContract,
    check_glm_dsa,
    is_full_by_frequency,
)
from tests.layer_package.generation_cases import GONE

TYPES, FREQUENCY, OFFSET = (
    f"attention.indexer.{name}" for name in ("types", "top_k_frequency", "skip_top_k_offset")
)
ROLES = ["full", "shared", "full", "shared"]


def values_of(**changes: Any) -> dict[str, object]:
    """Metadata of four trunk layers, one of them dense, and one prediction block."""
    values: dict[str, object] = dict.fromkeys(POSITIVE_INTEGERS, 8)
    values.update({
        "block_count": 5, "leading_dense_block_count": 1, "nextn_predict_layers": 1, TYPES: ROLES,
        "attention.layer_norm_rms_epsilon": 1e-5, "expert_weights_scale": 2.5,
        "expert_weights_norm": True,
    })  # fmt: skip
    named = {f"glm-dsa.{name}": value for name, value in values.items()}
    named["general.architecture"] = "glm-dsa"
    for name, value in changes.items():
        key = name if name.startswith("general.") else f"glm-dsa.{name}"
        if value is GONE:
            del named[key]
        else:
            named[key] = value
    return named


def tensors_of() -> set[str]:
    """The tensors that those values need."""
    names = {"token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight"}
    for layer in range(5):
        groups = [ATTENTION_TENSORS, DENSE_TENSORS if layer == 0 else EXPERT_TENSORS]
        groups += [INDEXER_TENSORS] if layer in (0, 2, 4) else []
        groups += [NEXTN_TENSORS] if layer == 4 else []
        names |= {f"blk.{layer}.{name}" for group in groups for name in group}
    return names


def failures(values: dict[str, object], tensors: set[str] | None = None) -> list[str]:
    """What fails."""
    contract = check_glm_dsa(values, tensors_of() if tensors is None else tensors)
    assert contract.holds == (not contract.failures)
    return contract.failures


def test_a_whole_model_holds() -> None:
    contract = check_glm_dsa(values_of(), tensors_of())
    assert contract.failures == []
    assert contract.role_source == "metadata_types"
    assert (contract.full_layers, contract.shared_layers) == ([0, 2], [1, 3])
    assert contract.prediction_layers == [4]
    report = Report(fail_fast=True)
    contract.add_to(report)
    assert list(report) == []


@pytest.mark.parametrize("name", POSITIVE_INTEGERS)
def test_every_integer_is_positive(name: str) -> None:
    for value in (GONE, 0, -1, 1.0, True, "8"):
        assert any(text.startswith(f"{name} is") for text in failures(values_of(**{name: value})))


VALUES = [
    ("attention.layer_norm_rms_epsilon", GONE), ("attention.layer_norm_rms_epsilon", 1),
    ("expert_weights_scale", math.nan), ("expert_weights_norm", 1), ("expert_weights_norm", GONE),
    ("general.architecture", "glm4moe"), ("nextn_predict_layers", 5),
    ("nextn_predict_layers", -1), ("nextn_predict_layers", "1"), (TYPES, ROLES[:3]),
    (TYPES, [*ROLES, "full"]), (TYPES, "full"), (TYPES, ["full", "shared", "full", "half"]),
    (TYPES, ["full", "shared", "full", ["shared"]]), (TYPES, GONE), (FREQUENCY, 0),
    (FREQUENCY, 2), ("block_count", 2**40),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), VALUES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(VALUES)]
)
def test_other_values(name: str, value: Any) -> None:
    started = time.process_time()
    assert failures(values_of(**{name: value}))
    assert time.process_time() - started < 1


def test_some_block_is_trunk() -> None:
    values = values_of(**{"nextn_predict_layers": 5, TYPES: []})
    assert failures(values) == ["nextn_predict_layers 5 of 5 blocks"]


def test_one_missing_tensor_is_one_failure() -> None:
    whole = tensors_of()
    optional = {"output.weight", "rope_freqs.weight"}
    for name in sorted(whole):
        found = failures(values_of(), whole - {name})
        assert len(found) == (0 if name in optional else 1), name
        if found and "indexer" not in name:
            assert found == [f"missing tensor {name}"]


def test_indexer_groups_match_the_role() -> None:
    whole = tensors_of()
    group = {layer: {f"blk.{layer}.{name}" for name in INDEXER_TENSORS} for layer in range(5)}
    assert failures(values_of(), whole - group[2]) == ["blk.2 is full but has no indexer tensors"]
    assert failures(values_of(), whole | group[1]) == [
        "blk.1 is shared but has a complete indexer group"
    ]
    partial = whole | {f"blk.1.{INDEXER_TENSORS[0]}"}
    assert failures(values_of(), partial) == ["blk.1 has a partial indexer group, 1 of 5 tensors"]
    assert len(failures(values_of(), whole - group[4])) == 5


@pytest.mark.parametrize(
    ("frequency", "offset", "full"),
    [(2, 0, [1, 3]), (2, 1, [0, 2]), (1, 0, [0, 1, 2, 3]), (3, 1, [0, 3]), (4, 4, [0, 1, 2, 3])],
)
def test_roles_by_frequency(frequency: int, offset: int, full: list[int]) -> None:
    assert [n for n in range(4) if is_full_by_frequency(n, offset, frequency)] == full
    values = values_of(**{TYPES: GONE, FREQUENCY: frequency, OFFSET: offset})
    contract = check_glm_dsa(values, tensors_of())
    assert contract.role_source == "metadata_frequency"
    assert contract.full_layers == full
    assert contract.holds == (full == [0, 2])


def test_both_sources_of_roles_must_agree() -> None:
    assert failures(values_of(**{FREQUENCY: 2, OFFSET: 1})) == []
    assert failures(values_of(**{FREQUENCY: 2, OFFSET: 0})) == [
        f"blk.{layer}: indexer.types and top_k_frequency disagree" for layer in range(4)
    ]


def test_inferring_roles_is_a_failure_of_its_own() -> None:
    contract = check_glm_dsa(values_of(**{TYPES: GONE}), tensors_of())
    assert contract.role_source == "tensor_presence"
    assert contract.failures == ["IndexShare roles could only be inferred from the tensors present"]


def test_a_failed_contract_is_one_error_with_a_short_list() -> None:
    contract = check_glm_dsa(values_of(block_count=4000, nextn_predict_layers=0), tensors_of())
    assert contract.n_failures > MAX_FAILURES_LISTED == len(contract.failures)
    report = Report()
    contract.add_to(report)
    assert report.kinds() == ["profile_contract_failed"]
    assert len(report.issues[0].message) < 1000
    with pytest.raises(GenerationError):
        contract.add_to(Report(fail_fast=True))
    assert contract.as_json()["failure_count"] == contract.n_failures
    assert GlmDsaContract().holds
