"""Owns the tensors of an upstream checkpoint: which the text path takes, which it knows and leaves.

Names are the text-only ones; a multimodal checkpoint's `model.language_model.` prefix is read as
`model.`. An unknown name, a missing one, or another shape is refused by the converter, by name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from packages.qwen3_8_27b.dims import HybridDims

MULTIMODAL_PREFIX = "model.language_model."
TEXT_PREFIX = "model."
# Recognised and left out of the text path; their shapes are other parts' business.
LEFT_OUT = {
    "vision": re.compile(r"(?:model\.)?visual\..+"),
    "mtp": re.compile(r"mtp\..+"),
}


class Role(StrEnum):
    """What a tensor is for; recipes choose a number format by role."""

    EMBEDDING = "embedding"
    HEAD = "head"
    MLP = "mlp"
    ATTENTION = "attention"
    GDN = "gdn"
    GDN_GATE = "gdn_gate"
    VECTOR = "vector"
    CONV = "conv"


@dataclass(frozen=True)
class Expected:
    """A tensor's shape in the checkpoint, outermost dimension first, and its role."""

    shape: tuple[int, ...]
    role: Role


def text_name(name: str) -> str:
    """The text-only name of a checkpoint tensor."""
    if name.startswith(MULTIMODAL_PREFIX):
        return TEXT_PREFIX + name.removeprefix(MULTIMODAL_PREFIX)
    return name


def left_out(name: str) -> str | None:
    """Which part a known tensor outside the text path belongs to, or None."""
    for part, pattern in LEFT_OUT.items():
        if pattern.fullmatch(name):
            return part
    return None


def inventory(dims: HybridDims) -> Mapping[str, Expected]:
    """Every tensor of the text path by its text-only name."""
    found = {
        "model.embed_tokens.weight": Expected((dims.n_vocab, dims.d_model), Role.EMBEDDING),
        "model.norm.weight": Expected((dims.d_model,), Role.VECTOR),
        "lm_head.weight": Expected((dims.n_vocab, dims.d_model), Role.HEAD),
    }
    for layer in range(dims.n_layers):
        mixer = _full(dims) if dims.is_full(layer) else _gdn(dims)
        for name, expected in {**_every_layer(dims), **mixer}.items():
            found[f"model.layers.{layer}.{name}"] = expected
    return found


def _every_layer(dims: HybridDims) -> dict[str, Expected]:
    return {
        "input_layernorm.weight": Expected((dims.d_model,), Role.VECTOR),
        "post_attention_layernorm.weight": Expected((dims.d_model,), Role.VECTOR),
        "mlp.gate_proj.weight": Expected((dims.d_ff, dims.d_model), Role.MLP),
        "mlp.up_proj.weight": Expected((dims.d_ff, dims.d_model), Role.MLP),
        "mlp.down_proj.weight": Expected((dims.d_model, dims.d_ff), Role.MLP),
    }


def _full(dims: HybridDims) -> dict[str, Expected]:
    d_q, d_kv = dims.n_heads * dims.d_head, dims.n_kv_heads * dims.d_head
    return {
        "self_attn.q_proj.weight": Expected((2 * d_q, dims.d_model), Role.ATTENTION),
        "self_attn.k_proj.weight": Expected((d_kv, dims.d_model), Role.ATTENTION),
        "self_attn.v_proj.weight": Expected((d_kv, dims.d_model), Role.ATTENTION),
        "self_attn.o_proj.weight": Expected((dims.d_model, d_q), Role.ATTENTION),
        "self_attn.q_norm.weight": Expected((dims.d_head,), Role.VECTOR),
        "self_attn.k_norm.weight": Expected((dims.d_head,), Role.VECTOR),
    }


def _gdn(dims: HybridDims) -> dict[str, Expected]:
    n_value, channels = dims.n_value_heads, dims.n_conv_channels
    return {
        "linear_attn.in_proj_qkv.weight": Expected((channels, dims.d_model), Role.GDN),
        "linear_attn.in_proj_z.weight": Expected((dims.d_value_all, dims.d_model), Role.GDN),
        "linear_attn.in_proj_a.weight": Expected((n_value, dims.d_model), Role.GDN_GATE),
        "linear_attn.in_proj_b.weight": Expected((n_value, dims.d_model), Role.GDN_GATE),
        "linear_attn.conv1d.weight": Expected((channels, 1, dims.conv_width), Role.CONV),
        "linear_attn.A_log": Expected((n_value,), Role.VECTOR),
        "linear_attn.dt_bias": Expected((n_value,), Role.VECTOR),
        "linear_attn.norm.weight": Expected((dims.d_value,), Role.VECTOR),
        "linear_attn.out_proj.weight": Expected((dims.d_model, dims.d_value_all), Role.GDN),
    }
