"""Owns the steps of a layer over up to 16 rows: decoding, batches of it, verifying.

Six launches for a layer of either kind; norms are part of the linears behind them.
"""

from collections.abc import Mapping

from engine.compiled.records import CompiledStep
from packages.qwen3_8_27b.compiled_layout import SEQUENCES, Layout, pages
from packages.qwen3_8_27b.linears import ADDED, NORMED
from ptx.gated_delta_step.op import OP as GATED_DELTA_STEP
from ptx.paged_attention_gated.op import OP as PAGED_ATTENTION_GATED
from ptx.qgate_norm_rope_append_pages.op import OP as QGATE_NORM_ROPE_APPEND_PAGES


def few_rows(layout: Layout, layer: int) -> tuple[CompiledStep, ...]:
    """The steps of one layer, "h" to "h"."""
    mixer = _attention if layout.dims.is_full(layer) else _gdn
    gain = f"model.layers.{layer}.post_attention_layernorm.weight"
    return (
        *mixer(layout, layer),
        _normed(layout, f"gate_up.{layer}", "swiglu", gain, {"y": "gate"}),
        _added(layout, f"down.{layer}", "gate"),
    )


def append(layout: Layout, layer: int) -> CompiledStep:
    """Norm and rotate queries and keys, split the gate off, put keys and values into pages."""
    block = layout.block(layer)
    return CompiledStep(QGATE_NORM_ROPE_APPEND_PAGES, {
        "qg": "qg", "k": "k", "v": "v", "w_q": f"{block}.q_norm.weight",
        "w_k": f"{block}.k_norm.weight", "positions": "positions", "slots": "slots",
        "inv_freq": "inv_freq", "q": "q", "gate": "attn_gate", **pages(layer),
        "eps": layout.dims.norm_eps,
    })


def _attention(layout: Layout, layer: int) -> list[CompiledStep]:
    outputs = {"y0": "qg", "y1": "k", "y2": "v"}
    return [
        _normed(layout, f"in.{layer}", "three", _input_gain(layer), outputs),
        append(layout, layer),
        CompiledStep(PAGED_ATTENTION_GATED, {
            "q": "q", "gate": "attn_gate", **pages(layer), "pages": "pages",
            "seq_of_token": "seq_of_token", "positions": "positions", "y": "attn_y",
            "parts": "parts", "peaks": "peaks", "arrived": "arrived",
        }),
        _added(layout, f"out.{layer}", "attn_y"),
    ]


def _gdn(layout: Layout, layer: int) -> list[CompiledStep]:
    gain, block = _input_gain(layer), layout.block(layer)
    return [
        _normed(layout, f"in.{layer}", "two", gain, {"y0": "u", "y1": "z"}),
        _normed(layout, f"ab.{layer}", "two", gain, {"y0": "a", "y1": "b"}),
        CompiledStep(GATED_DELTA_STEP, {
            "u": "u", "z": "z", "a": "a", "b": "b", "conv_w": f"{block}.conv1d.weight",
            "a_log": f"{block}.A_log", "dt_bias": f"{block}.dt_bias",
            "norm_w": f"{block}.norm.weight", **SEQUENCES, "tickets": "tickets",
            "conv_state": f"conv.{layer}", "state": f"delta.{layer}", "y": "gdn_y",
            "eps": layout.dims.norm_eps,
        }),
        _added(layout, f"out.{layer}", "gdn_y"),
    ]


def _input_gain(layer: int) -> str:
    return f"model.layers.{layer}.input_layernorm.weight"


def _normed(
    layout: Layout, matrix: str, epilogue: str, gain: str, outputs: Mapping[str, str]
) -> CompiledStep:
    op = NORMED[layout.form(matrix)][epilogue]
    return CompiledStep(op, {"x": "h", "gain": gain, "w": matrix, **outputs, **layout.norm()})


def _added(layout: Layout, matrix: str, x: str) -> CompiledStep:
    return CompiledStep(ADDED[layout.form(matrix)], {"x": x, "w": matrix, "h": "h"})
