"""Owns the steps of a layer over many rows: prompts, in chunks.

Products are of bf16 rows. Those of an int4 matrix are made before each product, into a buffer that
the matrices of one shape share: 58 us against 1,044 for gate and up on an H200
(KNOWLEDGE/evidence/h200-op-benchmark.md).
"""

from collections.abc import Mapping
from typing import NamedTuple

from engine.compiled.records import CompiledStep, Rows
from packages.qwen3_8_27b.compiled_few import append
from packages.qwen3_8_27b.compiled_layout import SEQUENCES, Layout, pages
from ptx.causal_attention_gated.op import OP as CAUSAL_ATTENTION_GATED
from ptx.causal_conv_silu.op import OP as CAUSAL_CONV_SILU
from ptx.delta_rule_chunked.op import OP as DELTA_RULE_CHUNKED
from ptx.dequantise_int4_tiles.op import OP as DEQUANTISE_INT4_TILES
from ptx.gated_rmsnorm_bf16.op import OP as GATED_RMSNORM_BF16
from ptx.gdn_gates.op import OP as GDN_GATES
from ptx.linear_xbf16_bf16.op import OP as XBF16_BF16
from ptx.linear_xbf16_bf16_add.op import OP as XBF16_BF16_ADD
from ptx.linear_xbf16_bf16_swiglu.op import OP as XBF16_BF16_SWIGLU
from ptx.op import Op
from ptx.rmsnorm_bf16.op import OP as RMSNORM_BF16

# Tokens of a chunk of the delta rule, at most; its tensor-core kernel cuts them to steps of 16.
CHUNK = 64


def many_rows(layout: Layout, layer: int) -> tuple[CompiledStep, ...]:
    """The steps of one layer, "h" to "h"."""
    mixer = _attention if layout.dims.is_full(layer) else _gdn
    prefix = f"model.layers.{layer}"
    return (
        _rounded_norm(layout, f"{prefix}.input_layernorm.weight"),
        *_split_products(layout, layer),
        *mixer(layout, layer),
        _rounded_norm(layout, f"{prefix}.post_attention_layernorm.weight"),
        *_product(layout, XBF16_BF16_SWIGLU, layer, "gate_up", {"x": "x", "y": "gate"}),
        *_product(layout, XBF16_BF16_ADD, layer, "down", {"x": "gate", "h": "h"}),
    )


def _attention(layout: Layout, layer: int) -> list[CompiledStep]:
    return [
        append(layout, layer),
        CompiledStep(CAUSAL_ATTENTION_GATED, {
            "q": "q", "gate": "attn_gate", **pages(layer), "pages": "pages",
            "starts": "starts", "first": "first", "y": "attn_y",
        }),
        *_product(layout, XBF16_BF16_ADD, layer, "out", {"x": "attn_y", "h": "h"}),
    ]


def _gdn(layout: Layout, layer: int) -> list[CompiledStep]:
    block, eps, n = layout.block(layer), layout.dims.norm_eps, layout.dims.n_value_heads
    gates = {"a": Rows(f"ab.{layer}", 0, n), "b": Rows(f"ab.{layer}", n, 2 * n)}
    return [
        *(CompiledStep(XBF16_BF16, {"x": "x", "w": w, "y": y}) for y, w in gates.items()),
        CompiledStep(CAUSAL_CONV_SILU, {
            "u": "u", "w": f"{block}.conv1d.weight", **SEQUENCES, "state": f"conv.{layer}",
            "y": "qkv",
        }),
        CompiledStep(GDN_GATES, {
            "a": "a", "b": "b", "a_log": f"{block}.A_log", "dt_bias": f"{block}.dt_bias",
            "g": "g", "beta": "beta",
        }),
        CompiledStep(DELTA_RULE_CHUNKED, {
            "qkv": "qkv", "g": "g", "beta": "beta", **SEQUENCES, "state": f"delta.{layer}",
            "o": "o", "chunk": CHUNK,
        }),
        CompiledStep(GATED_RMSNORM_BF16, {
            "o": "o", "z": "z", "w": f"{block}.norm.weight", "y": "gdn_y", "eps": eps,
        }),
        *_product(layout, XBF16_BF16_ADD, layer, "out", {"x": "gdn_y", "h": "h"}),
    ]


def _rounded_norm(layout: Layout, gain: str) -> CompiledStep:
    return CompiledStep(RMSNORM_BF16, {"x": "h", "w": gain, "y": "x", **layout.norm()})


class _Bf16Rows(NamedTuple):
    """The buffer that has a matrix's rows, and the steps that put them there."""

    name: str
    steps: tuple[CompiledStep, ...]


def _rows(layout: Layout, layer: int, name: str) -> _Bf16Rows:
    matrix = f"{name}.{layer}"
    if layout.form(matrix) == "bf16":
        return _Bf16Rows(matrix, ())
    wide = layout.wide(layer, name)
    return _Bf16Rows(wide, (CompiledStep(DEQUANTISE_INT4_TILES, {"w": matrix, "y": wide}),))


def _split_products(layout: Layout, layer: int) -> list[CompiledStep]:
    """A mixer's first linear: a product for each of its outputs."""
    rows = _rows(layout, layer, "in")
    steps, at = list(rows.steps), 0
    for y, width in layout.splits(layer).items():
        w = Rows(rows.name, at, at + width)
        steps.append(CompiledStep(XBF16_BF16, {"x": "x", "w": w, "y": y}))
        at += width
    return steps


def _product(
    layout: Layout, op: Op, layer: int, name: str, args: Mapping[str, str]
) -> list[CompiledStep]:
    rows = _rows(layout, layer, name)
    return [*rows.steps, CompiledStep(op, {**args, "w": rows.name})]
