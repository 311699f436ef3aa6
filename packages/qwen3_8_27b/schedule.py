"""Owns the order of op calls that is the Qwen3.8 hybrid: norms, mixers, MLPs, untied head.

Weights have the text-only upstream names. The residual stream is "h"; a GDN layer's carried state
is "conv.<layer>" and "delta.<layer>", read from slot `state_in` and written to slot `state_out`.
"""

import numpy as np

from engine.records import Schedule, Step
from packages.qwen3_8_27b.dims import HybridDims
from ptx.attention.op import OP as ATTENTION
from ptx.causal_conv_silu.op import OP as CAUSAL_CONV_SILU
from ptx.delta_rule.op import OP as DELTA_RULE
from ptx.embedding.op import OP as EMBEDDING
from ptx.gated_rmsnorm.op import OP as GATED_RMSNORM
from ptx.gdn_gates.op import OP as GDN_GATES
from ptx.linear.op import OP as LINEAR
from ptx.linear_add.op import OP as LINEAR_ADD
from ptx.qgate_norm_rope_append_kv.op import OP as QGATE_NORM_ROPE_APPEND_KV
from ptx.rmsnorm.op import OP as RMSNORM
from ptx.sigmoid_gate.op import OP as SIGMOID_GATE
from ptx.swiglu.op import OP as SWIGLU

# What a BF16 engine keeps in float32 between ops.
FLOAT32_BUFFERS = {"g", "beta", "logits"}
SEQUENCES = {"starts": "starts", "state_in": "state_in", "state_out": "state_out"}


def schedule(dims: HybridDims) -> Schedule:
    """The whole text model's steps for one set of dims."""
    pairs = np.arange(dims.d_rotary // 2, dtype=np.float64)
    return Schedule(
        embed=(Step(EMBEDDING, {"ids": "ids", "w": "model.embed_tokens.weight", "y": "h"}),),
        layers=tuple(_layer(dims, layer) for layer in range(dims.n_layers)),
        head=(
            # The rows that want logits are picked as if they were embedding rows.
            Step(EMBEDDING, {"ids": "rows", "w": "h", "y": "h_out"}),
            _norm(dims, "model.norm.weight", x="h_out", y="h_out"),
            _linear("lm_head.weight", x="h_out", y="logits"),
        ),
        buffers=_buffers(dims),
        constants={"inv_freq": dims.rope_theta ** (-2.0 * pairs / dims.d_rotary)},
        activations=frozenset(_buffers(dims)) - FLOAT32_BUFFERS,
    )


def _buffers(dims: HybridDims) -> dict[str, tuple[int, ...]]:
    heads, kv_heads = (dims.n_heads, dims.d_head), (dims.n_kv_heads, dims.d_head)
    values = (dims.n_value_heads, dims.d_value)
    return {
        "h": (dims.d_model,), "x": (dims.d_model,), "h_out": (dims.d_model,),
        "qg": (dims.n_heads, 2 * dims.d_head), "q": heads, "attn_gate": heads, "y": heads,
        "k": kv_heads, "v": kv_heads,
        "u": (dims.n_conv_channels,), "qkv": (dims.n_conv_channels,), "z": values, "o": values,
        "a": (dims.n_value_heads,), "b": (dims.n_value_heads,),
        "g": (dims.n_value_heads,), "beta": (dims.n_value_heads,),
        "gate": (dims.d_ff,), "up": (dims.d_ff,), "logits": (dims.n_vocab,),
    }


def _layer(dims: HybridDims, layer: int) -> tuple[Step, ...]:
    prefix = f"model.layers.{layer}"
    mixer = _attention if dims.is_full(layer) else _gdn
    return (
        _norm(dims, f"{prefix}.input_layernorm.weight", x="h", y="x"),
        *mixer(dims, layer, prefix),
        _norm(dims, f"{prefix}.post_attention_layernorm.weight", x="h", y="x"),
        _linear(f"{prefix}.mlp.gate_proj.weight", x="x", y="gate"),
        _linear(f"{prefix}.mlp.up_proj.weight", x="x", y="up"),
        Step(SWIGLU, {"gate": "gate", "up": "up", "y": "gate"}),
        _linear_add(f"{prefix}.mlp.down_proj.weight", x="gate"),
    )


def _attention(dims: HybridDims, layer: int, prefix: str) -> list[Step]:
    """x, h [T, D] -> h [T, D], through gated full attention."""
    block = f"{prefix}.self_attn"
    cache = {"k_cache": f"k_cache.{layer}", "v_cache": f"v_cache.{layer}"}
    return [
        _linear(f"{block}.q_proj.weight", x="x", y="qg"),
        _linear(f"{block}.k_proj.weight", x="x", y="k"),
        _linear(f"{block}.v_proj.weight", x="x", y="v"),
        Step(QGATE_NORM_ROPE_APPEND_KV, {
            "qg": "qg", "k": "k", "v": "v", "w_q": f"{block}.q_norm.weight",
            "w_k": f"{block}.k_norm.weight", "positions": "positions", "slots": "slots",
            "inv_freq": "inv_freq", "q": "q", "gate": "attn_gate", **cache, "eps": dims.norm_eps,
        }),
        Step(ATTENTION, {
            "q": "q", **cache, "table": "table", "seq_of_token": "seq_of_token",
            "positions": "positions", "y": "y",
        }),
        Step(SIGMOID_GATE, {"gate": "attn_gate", "x": "y"}),
        _linear_add(f"{block}.o_proj.weight", x="y"),
    ]


def _gdn(dims: HybridDims, layer: int, prefix: str) -> list[Step]:
    """x, h [T, D] -> h [T, D], through one GatedDeltaNet mixer."""
    block = f"{prefix}.linear_attn"
    return [
        _linear(f"{block}.in_proj_qkv.weight", x="x", y="u"),
        _linear(f"{block}.in_proj_z.weight", x="x", y="z"),
        _linear(f"{block}.in_proj_a.weight", x="x", y="a"),
        _linear(f"{block}.in_proj_b.weight", x="x", y="b"),
        Step(CAUSAL_CONV_SILU, {
            "u": "u", "w": f"{block}.conv1d.weight", **SEQUENCES, "state": f"conv.{layer}",
            "y": "qkv",
        }),
        Step(GDN_GATES, {
            "a": "a", "b": "b", "a_log": f"{block}.A_log", "dt_bias": f"{block}.dt_bias",
            "g": "g", "beta": "beta",
        }),
        Step(DELTA_RULE, {
            "qkv": "qkv", "g": "g", "beta": "beta", **SEQUENCES, "state": f"delta.{layer}",
            "o": "o",
        }),
        Step(GATED_RMSNORM, {
            "o": "o", "z": "z", "w": f"{block}.norm.weight", "y": "o", "eps": dims.norm_eps,
        }),
        _linear_add(f"{block}.out_proj.weight", x="o"),
    ]


def _norm(dims: HybridDims, weight: str, x: str, y: str) -> Step:
    """A zero-centred RMSNorm: the stored weight is one less than the gain."""
    return Step(RMSNORM, {"x": x, "w": weight, "y": y, "eps": dims.norm_eps, "offset": 1.0})


def _linear(weight: str, x: str, y: str) -> Step:
    return Step(LINEAR, {"x": x, "w": weight, "y": y})


def _linear_add(weight: str, x: str) -> Step:
    return Step(LINEAR_ADD, {"x": x, "w": weight, "h": "h"})
