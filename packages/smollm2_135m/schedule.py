"""Owns the order of op calls that is SmolLM2: embedding, 30 equal blocks, tied head.

Queries and keys of a `llama` GGUF are stored for adjacent-pair rotation, hence `interleaved`.
"""

import numpy as np

from engine.records import Schedule, Step
from packages.smollm2_135m.dims import DenseDims
from ptx.attention.op import OP as ATTENTION
from ptx.embedding.op import OP as EMBEDDING
from ptx.linear.op import OP as LINEAR
from ptx.linear_add.op import OP as LINEAR_ADD
from ptx.rmsnorm.op import OP as RMSNORM
from ptx.rope_append_kv.op import OP as ROPE_APPEND_KV
from ptx.swiglu.op import OP as SWIGLU


def schedule(dims: DenseDims) -> Schedule:
    """The whole model's steps for one set of dims."""
    pairs = np.arange(dims.d_head // 2, dtype=np.float64)
    heads, kv_heads = (dims.n_heads, dims.d_head), (dims.n_kv_heads, dims.d_head)
    return Schedule(
        embed=(Step(EMBEDDING, {"ids": "ids", "w": "token_embd.weight", "y": "h"}),),
        layers=tuple(
            (*_attention(dims, index), *_mlp(dims, index)) for index in range(dims.n_layers)
        ),
        head=(
            # The rows that want logits are picked as if they were embedding rows.
            Step(EMBEDDING, {"ids": "rows", "w": "h", "y": "h_out"}),
            _norm(dims, "output_norm.weight", x="h_out", y="h_out"),
            Step(LINEAR, {"x": "h_out", "w": "token_embd.weight", "y": "logits"}),
        ),
        buffers={
            "h": (dims.d_model,), "x": (dims.d_model,), "h_out": (dims.d_model,),
            "q": heads, "k": kv_heads, "v": kv_heads, "y": heads,
            "gate": (dims.d_ff,), "up": (dims.d_ff,), "logits": (dims.n_vocab,),
        },
        constants={"inv_freq": dims.rope_theta ** (-2.0 * pairs / dims.d_head)},
    )


def _norm(dims: DenseDims, weight: str, x: str, y: str) -> Step:
    args = {"x": x, "w": weight, "y": y, "eps": dims.norm_eps, "offset": 0.0}
    return Step(RMSNORM, args)


def _attention(dims: DenseDims, index: int) -> list[Step]:
    """h [T, D] -> h [T, D], through one attention block."""
    block = f"blk.{index}"
    cache = {"k_cache": f"k_cache.{index}", "v_cache": f"v_cache.{index}"}
    return [
        _norm(dims, f"{block}.attn_norm.weight", x="h", y="x"),
        Step(LINEAR, {"x": "x", "w": f"{block}.attn_q.weight", "y": "q"}),
        Step(LINEAR, {"x": "x", "w": f"{block}.attn_k.weight", "y": "k"}),
        Step(LINEAR, {"x": "x", "w": f"{block}.attn_v.weight", "y": "v"}),
        Step(ROPE_APPEND_KV, {
            "q": "q", "k": "k", "v": "v", "positions": "positions", "slots": "slots",
            "inv_freq": "inv_freq", **cache, "interleaved": True,
        }),
        Step(ATTENTION, {
            "q": "q", **cache, "table": "table", "seq_of_token": "seq_of_token",
            "positions": "positions", "y": "y",
        }),
        Step(LINEAR_ADD, {"x": "y", "w": f"{block}.attn_output.weight", "h": "h"}),
    ]


def _mlp(dims: DenseDims, index: int) -> list[Step]:
    """h [T, D] -> h [T, D], through one SwiGLU block."""
    block = f"blk.{index}"
    return [
        _norm(dims, f"{block}.ffn_norm.weight", x="h", y="x"),
        Step(LINEAR, {"x": "x", "w": f"{block}.ffn_gate.weight", "y": "gate"}),
        Step(LINEAR, {"x": "x", "w": f"{block}.ffn_up.weight", "y": "up"}),
        Step(SWIGLU, {"gate": "gate", "up": "up", "y": "gate"}),
        Step(LINEAR_ADD, {"x": "gate", "w": f"{block}.ffn_down.weight", "h": "h"}),
    ]
