"""Owns what a model must hold before `glm-dsa-v1` may be named: metadata values and tensor names.

It must not know files: values come as plain Python values by GGUF key (int, float, bool, str, list
of str), tensor names as a set over the whole model. Roles of layers come from metadata; telling
them from the tensors present is a failure, though the remaining checks then go on with it.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from packages.layer_package.errors import GenerationError, Report
from packages.layer_package.generation_fields import is_integer, shown

ARCHITECTURE = "glm-dsa"
PROFILE = "glm-dsa-v1"
POSITIVE_INTEGERS = (
    "context_length", "embedding_length", "block_count", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.q_lora_rank", "attention.kv_lora_rank",
    "rope.dimension_count", "expert_count", "expert_used_count", "expert_shared_count",
    "expert_feed_forward_length", "leading_dense_block_count", "attention.indexer.head_count",
    "attention.indexer.key_length", "attention.indexer.top_k",
)  # fmt: skip
FLOATS = ("attention.layer_norm_rms_epsilon", "expert_weights_scale")
BOOLS = ("expert_weights_norm",)
MODEL_TENSORS = ("token_embd.weight", "output_norm.weight")
ATTENTION_TENSORS = (
    "attn_norm.weight", "attn_q_a_norm.weight", "attn_kv_a_norm.weight", "attn_q_a.weight",
    "attn_q_b.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight",
    "attn_output.weight", "ffn_norm.weight",
)  # fmt: skip
DENSE_TENSORS = ("ffn_gate.weight", "ffn_down.weight", "ffn_up.weight")
EXPERT_TENSORS = (
    "ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_down_exps.weight", "ffn_up_exps.weight",
    "ffn_gate_shexp.weight", "ffn_down_shexp.weight", "ffn_up_shexp.weight",
)  # fmt: skip
INDEXER_TENSORS = (
    "indexer.k_norm.weight", "indexer.k_norm.bias", "indexer.proj.weight",
    "indexer.attn_k.weight", "indexer.attn_q_b.weight",
)  # fmt: skip
NEXTN_TENSORS = ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight")
MAX_FAILURES_LISTED = 256
_MAX_LAYERS = 4096
_IN_MESSAGE = 8


@dataclass(slots=True)
class GlmDsaContract:
    """The outcome. `n_failures` counts them all, `failures` lists the first 256."""

    failures: list[str] = field(default_factory=list)
    n_failures: int = 0
    role_source: str | None = None
    full_layers: list[int] = field(default_factory=list)
    shared_layers: list[int] = field(default_factory=list)
    prediction_layers: list[int] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether the profile may be named."""
        return self.n_failures == 0

    def fail(self, message: str) -> None:
        """Count a failure."""
        self.n_failures += 1
        if len(self.failures) < MAX_FAILURES_LISTED:
            self.failures.append(message)

    def add_to(self, report: Report) -> None:
        """Add one `profile_contract_failed` with the list, if the contract does not hold."""
        if self.holds:
            return
        listed = "; ".join(self.failures[:_IN_MESSAGE])
        more = self.n_failures - _IN_MESSAGE
        report.add(
            GenerationError(
                "profile_contract_failed",
                f"{PROFILE}: {listed}{f'; and {more} more' if more > 0 else ''}",
                pointer="/generation/policy/profile",
            )
        )

    def as_json(self) -> dict[str, Any]:
        """Its members for a machine-readable answer."""
        return {
            "valid": self.holds, "profile": PROFILE, "failure_count": self.n_failures,
            "failures": self.failures, "role_source": self.role_source,
            "full_layers": self.full_layers, "shared_layers": self.shared_layers,
            "prediction_layers": self.prediction_layers,
        }  # fmt: skip


def check_glm_dsa(values: Mapping[str, object], tensors: Set[str]) -> GlmDsaContract:
    """Check the profile's contract; nothing is raised, failures are in what it returns."""
    contract = GlmDsaContract()
    _check_values(values, contract)
    for name in MODEL_TENSORS:
        if name not in tensors:
            contract.fail(f"missing tensor {name}")
    n_blocks = _count(values, "block_count")
    n_predicting = values.get(f"{ARCHITECTURE}.nextn_predict_layers", 0)
    if n_blocks is None:
        return contract
    if not (is_integer(n_predicting) and isinstance(n_predicting, int)):
        contract.fail(f"nextn_predict_layers is {shown(n_predicting)}, needs an integer")
        return contract
    if not 0 <= n_predicting < n_blocks:
        contract.fail(f"nextn_predict_layers {shown(n_predicting)} of {shown(n_blocks)} blocks")
        return contract
    # A block holds many tensors, so a count above all tensors cannot be true; it bounds the loops.
    if n_blocks > max(len(tensors), _MAX_LAYERS):
        contract.fail(f"block_count {shown(n_blocks)} with {len(tensors)} tensors in all")
        return contract
    n_trunk = n_blocks - n_predicting
    roles = _roles(values, n_trunk, tensors, contract)
    n_dense = _count(values, "leading_dense_block_count") or 0
    for layer in range(n_trunk):
        _check_layer(layer, n_dense, tensors, contract)
        _check_role(layer, roles[layer], tensors, contract)
    for layer in range(n_trunk, n_blocks):
        _check_layer(layer, n_dense, tensors, contract)
        _need(layer, (*NEXTN_TENSORS, *INDEXER_TENSORS), tensors, contract)
        contract.prediction_layers.append(layer)
    return contract


def is_full_by_frequency(layer: int, offset: int, frequency: int) -> bool:
    """Whether frequency and offset make a layer full."""
    return layer < offset or (layer - offset + 1) % frequency == 0


def _count(values: Mapping[str, object], name: str) -> int | None:
    """The integer of that name if it is positive."""
    value = values.get(f"{ARCHITECTURE}.{name}")
    return value if is_integer(value) and isinstance(value, int) and value > 0 else None


def _check_values(values: Mapping[str, object], contract: GlmDsaContract) -> None:
    architecture = values.get("general.architecture")
    if architecture != ARCHITECTURE:
        contract.fail(f"general.architecture is {shown(architecture)}, needs {ARCHITECTURE!r}")
    for name in POSITIVE_INTEGERS:
        if _count(values, name) is None:
            given = shown(values.get(f"{ARCHITECTURE}.{name}"))
            contract.fail(f"{name} is {given}, needs a positive integer")
    for name in FLOATS:
        value = values.get(f"{ARCHITECTURE}.{name}")
        if not isinstance(value, float) or not math.isfinite(value):
            contract.fail(f"{name} is {shown(value)}, needs a finite float")
    for name in BOOLS:
        value = values.get(f"{ARCHITECTURE}.{name}")
        if not isinstance(value, bool):
            contract.fail(f"{name} is {shown(value)}, needs a bool")


def _roles(
    values: Mapping[str, object], n_trunk: int, tensors: Set[str], contract: GlmDsaContract
) -> list[bool]:
    """Whether each trunk layer is full, from the best source there is."""
    by_type = _roles_by_type(values, n_trunk, contract)
    by_frequency = _roles_by_frequency(values, n_trunk, contract)
    if by_type is not None and by_frequency is not None:
        for layer, (one, other) in enumerate(zip(by_type, by_frequency, strict=True)):
            if one != other:
                contract.fail(f"blk.{layer}: indexer.types and top_k_frequency disagree")
    if by_type is not None:
        contract.role_source = "metadata_types"
        return by_type
    if by_frequency is not None:
        contract.role_source = "metadata_frequency"
        return by_frequency
    contract.role_source = "tensor_presence"
    contract.fail("IndexShare roles could only be inferred from the tensors present")
    return [_indexer_count(layer, tensors) == len(INDEXER_TENSORS) for layer in range(n_trunk)]


def _roles_by_type(
    values: Mapping[str, object], n_trunk: int, contract: GlmDsaContract
) -> list[bool] | None:
    types = values.get(f"{ARCHITECTURE}.attention.indexer.types")
    if types is None:
        return None
    if not isinstance(types, list | tuple) or len(types) != n_trunk:
        given = len(types) if isinstance(types, list | tuple) else shown(types)
        contract.fail(f"indexer.types holds {given}, needs {n_trunk} trunk layers")
        return None
    unknown = [layer for layer, role in enumerate(types) if role not in ("full", "shared")]
    for layer in unknown:
        contract.fail(f"indexer.types[{layer}] is {shown(types[layer])}, needs full or shared")
    return None if unknown else [role == "full" for role in types]


def _roles_by_frequency(
    values: Mapping[str, object], n_trunk: int, contract: GlmDsaContract
) -> list[bool] | None:
    frequency = values.get(f"{ARCHITECTURE}.attention.indexer.top_k_frequency")
    offset = values.get(f"{ARCHITECTURE}.attention.indexer.skip_top_k_offset")
    if frequency is None:
        return None
    if not (is_integer(frequency) and isinstance(frequency, int) and frequency > 0):
        contract.fail(f"top_k_frequency is {shown(frequency)}, needs a positive integer")
        return None
    if not (is_integer(offset) and isinstance(offset, int) and offset >= 0):
        contract.fail(f"skip_top_k_offset is {shown(offset)}, needs an integer from 0")
        return None
    return [is_full_by_frequency(layer, offset, frequency) for layer in range(n_trunk)]


def _check_layer(layer: int, n_dense: int, tensors: Set[str], contract: GlmDsaContract) -> None:
    feed_forward = DENSE_TENSORS if layer < n_dense else EXPERT_TENSORS
    _need(layer, (*ATTENTION_TENSORS, *feed_forward), tensors, contract)


def _check_role(layer: int, full: bool, tensors: Set[str], contract: GlmDsaContract) -> None:
    (contract.full_layers if full else contract.shared_layers).append(layer)
    count, whole = _indexer_count(layer, tensors), len(INDEXER_TENSORS)
    if count not in (0, whole):
        contract.fail(f"blk.{layer} has a partial indexer group, {count} of {whole} tensors")
    elif full and count == 0:
        contract.fail(f"blk.{layer} is full but has no indexer tensors")
    elif not full and count == whole:
        contract.fail(f"blk.{layer} is shared but has a complete indexer group")


def _need(layer: int, names: tuple[str, ...], tensors: Set[str], contract: GlmDsaContract) -> None:
    for name in names:
        if f"blk.{layer}.{name}" not in tensors:
            contract.fail(f"missing tensor blk.{layer}.{name}")


def _indexer_count(layer: int, tensors: Set[str]) -> int:
    return sum(f"blk.{layer}.{name}" in tensors for name in INDEXER_TENSORS)
