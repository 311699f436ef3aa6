"""Owns what config.json and GGUF metadata state of the model, compared with a package's dims.

Every number that decides what is computed must be stated and equal; a difference is refused with
both values. Fields that do not touch the text path are not looked at.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from engine.artifacts.gguf import GgufFile
from engine.errors import ModelError
from packages.qwen3_8_27b.dims import HybridDims

ARCHITECTURE = "qwen35"
DRAFT_LAYERS_KEY = f"{ARCHITECTURE}.nextn_predict_layers"
MAX_DRAFT_LAYERS = 16
# config.json field -> dims field; all must be there.
CONFIG_FIELDS = {
    "num_hidden_layers": "n_layers",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "vocab_size": "n_vocab",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "d_head",
    "linear_num_key_heads": "n_key_heads",
    "linear_num_value_heads": "n_value_heads",
    "linear_key_head_dim": "d_key",
    "linear_value_head_dim": "d_value",
    "linear_conv_kernel_dim": "conv_width",
    "rms_norm_eps": "norm_eps",
    "max_position_embeddings": "n_context",
}
# What the family allows and this package does not do otherwise; may be left out.
CONFIG_FIXED: Mapping[str, Any] = {
    "attention_bias": False,
    "attn_output_gate": True,
    "hidden_act": "silu",
    "mamba_ssm_dtype": "float32",
    "tie_word_embeddings": False,
    "quantization_config": None,
}
ROPE_FIXED: Mapping[str, Any] = {"rope_type": "default", "mrope_interleaved": True}
GGUF_FIELDS: Mapping[str, Callable[[HybridDims], float]] = {
    "embedding_length": lambda d: d.d_model,
    "feed_forward_length": lambda d: d.d_ff,
    "context_length": lambda d: d.n_context,
    "attention.head_count": lambda d: d.n_heads,
    "attention.head_count_kv": lambda d: d.n_kv_heads,
    "attention.key_length": lambda d: d.d_head,
    "attention.value_length": lambda d: d.d_head,
    "attention.layer_norm_rms_epsilon": lambda d: d.norm_eps,
    "rope.dimension_count": lambda d: d.d_rotary,
    "rope.freq_base": lambda d: d.rope_theta,
    "full_attention_interval": lambda d: d.full_attention_interval,
    "ssm.conv_kernel": lambda d: d.conv_width,
    "ssm.state_size": lambda d: d.d_key,
    "ssm.group_count": lambda d: d.n_key_heads,
    "ssm.time_step_rank": lambda d: d.n_value_heads,
    "ssm.inner_size": lambda d: d.d_value_all,
}
_ABSENT = object()


def check_config(document: Any, what: str, dims: HybridDims, key: str) -> None:
    """ModelError naming every field of a parsed config.json that contradicts the dims."""
    text = document.get("text_config", document) if isinstance(document, dict) else None
    if not isinstance(text, dict):
        raise ModelError(f"{what}: not a description of a model")
    rope = text.get("rope_parameters")
    if not isinstance(rope, dict):
        raise ModelError(f"{what}: rope_parameters is missing; no default of it is right")
    wanted: dict[str, Any] = {"model_type": "qwen3_5_text"}
    wanted |= {field: getattr(dims, name) for field, name in CONFIG_FIELDS.items()}
    faults = _faults(text, wanted, "", key)
    faults += _faults(rope, {"rope_theta": dims.rope_theta}, "rope_parameters.", key)
    faults += _faults(_present(rope, ROPE_FIXED), ROPE_FIXED, "rope_parameters.", key)
    factor = dims.d_rotary / dims.d_head
    faults += _faults(rope, {"partial_rotary_factor": factor}, "rope_parameters.", key)
    faults += _section_faults(rope.get("mrope_section"), dims, key)
    kinds = [
        "full_attention" if dims.is_full(i) else "linear_attention" for i in range(dims.n_layers)
    ]
    optional = {
        "full_attention_interval": dims.full_attention_interval, "layer_types": kinds,
        **CONFIG_FIXED,
    }
    faults += _faults(_present(text, optional), optional, "", key)
    if text is not document:
        faults += _faults(_present(document, CONFIG_FIXED), CONFIG_FIXED, "", key)
    if faults:
        raise ModelError(f"{what}: {'; '.join(faults)}")


def config_json(dims: HybridDims) -> dict[str, Any]:
    """The text config.json that states these dims: what `check_config` takes.

    Of three-axis positions only the number of pairs matters to text; they are shared out evenly.
    """
    n_pairs = dims.d_rotary // 2
    section = [n_pairs - 2 * (n_pairs // 3), n_pairs // 3, n_pairs // 3]
    return {
        "model_type": "qwen3_5_text",
        **{field: getattr(dims, name) for field, name in CONFIG_FIELDS.items()},
        **{field: value for field, value in CONFIG_FIXED.items() if value is not None},
        "full_attention_interval": dims.full_attention_interval,
        "layer_types": [
            "full_attention" if dims.is_full(i) else "linear_attention"
            for i in range(dims.n_layers)
        ],
        "rope_parameters": {
            **ROPE_FIXED, "rope_theta": dims.rope_theta, "mrope_section": section,
            "partial_rotary_factor": dims.d_rotary / dims.d_head,
        },
    }


def check_gguf(file: GgufFile, dims: HybridDims, key: str) -> None:
    """ModelError naming every metadata key that contradicts the dims."""
    stated = file.get("general.architecture")
    if stated != ARCHITECTURE:
        raise ModelError(
            f"{file.shown}: general.architecture is {_short(stated)}, {key} is {ARCHITECTURE!r}"
        )
    wanted = {f"{ARCHITECTURE}.{field}": value(dims) for field, value in GGUF_FIELDS.items()}
    wanted[f"{ARCHITECTURE}.block_count"] = dims.n_layers + n_draft_layers(file)
    found = {field: file.get(field, _ABSENT) for field in wanted}
    # Metadata floats are float32: 1e-6 arrives as its nearest neighbour.
    near = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in wanted.items()}
    faults = _faults(found, near, "", key)
    tokens = file.get("tokenizer.ggml.tokens", [""] * dims.n_vocab)
    if not isinstance(tokens, list) or len(tokens) != dims.n_vocab:
        said = f"{len(tokens)} entries" if isinstance(tokens, list) else _short(tokens)
        faults.append(f"tokenizer.ggml.tokens has {said}, {key} has {dims.n_vocab} rows")
    if faults:
        raise ModelError(f"{file.shown}: {'; '.join(faults)}")


def n_draft_layers(file: GgufFile) -> int:
    """Layers of the file that only draft (MTP), after the model's own."""
    found = file.get(DRAFT_LAYERS_KEY, 0)
    if type(found) is not int or not 0 <= found <= MAX_DRAFT_LAYERS:
        raise ModelError(
            f"{file.shown}: {DRAFT_LAYERS_KEY} is {_short(found)}, not 0 to {MAX_DRAFT_LAYERS}"
        )
    return found


def _present(found: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field: found.get(field, wanted) for field, wanted in fields.items()}


def _faults(
    found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str, key: str
) -> list[str]:
    faults = []
    for field, value in wanted.items():
        stated = found.get(field, _ABSENT)
        # True == 1 in Python, and a model has no head count of True.
        if isinstance(stated, bool) != isinstance(value, bool) or stated != value:
            said = "missing" if stated is _ABSENT else _short(stated)
            faults.append(f"{prefix}{field} is {said}, {key} has {_short(value)}")
    return faults


def _section_faults(section: Any, dims: HybridDims, key: str) -> list[str]:
    """For text all three axes are equal, so only the number of pairs matters."""
    n_pairs = dims.d_rotary // 2
    is_list = isinstance(section, list) and all(type(n) is int for n in section)
    if section is None or (is_list and sum(section) == n_pairs):
        return []
    return [f"rope_parameters.mrope_section is {_short(section)}, {key} has {n_pairs} pairs"]


def _short(value: Any) -> str:
    return f"{value!r:.200}"
