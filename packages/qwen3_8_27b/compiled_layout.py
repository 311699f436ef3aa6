"""Owns what both passes of the compiled schedule share: matrices, widths, buffers, names.

It must not know the order of steps.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.compiled.head import N_BUFFERS
from engine.compiled.records import Cells, Form, Matrix, Scratch
from packages.qwen3_8_27b.dims import HybridDims
from packages.qwen3_8_27b.linears import NORMED
from ptx.token_signal_wide.op import work_words

FEW_ROWS, MANY_ROWS = 16, 2048
# Blocks of a decode launch of attention: one on each multiprocessor of an H200.
ATTENTION_BLOCKS = 132
TILE_ROWS, GROUP = 8, 128
SEQUENCES = {"starts": "starts", "state_in": "state_in", "state_out": "state_out"}


@dataclass(frozen=True)
class Layout:
    """One set of dims with its merged matrices; "in.3" is the first linear of layer 3's mixer."""

    dims: HybridDims
    matrices: Mapping[str, Matrix]

    def form(self, matrix: str) -> Form:
        """How a matrix lies."""
        return self.matrices[matrix].form

    def block(self, layer: int) -> str:
        """What the names of a layer's mixer begin with."""
        return f"model.layers.{layer}.{mixer(self.dims, layer)}"

    def norm(self) -> dict[str, float]:
        """The scalars of every norm with a zero-centred gain."""
        return {"eps": self.dims.norm_eps, "offset": 1.0}

    def shape(self, layer: int, name: str) -> tuple[int, int]:
        """Rows and columns of a layer's "in", "out", "gate_up" or "down"."""
        dims = self.dims
        if name == "in":
            return sum(self.splits(layer).values()), dims.d_model
        if name == "out":
            full = dims.is_full(layer)
            return dims.d_model, dims.n_heads * dims.d_head if full else dims.d_value_all
        return (2 * dims.d_ff, dims.d_model) if name == "gate_up" else (dims.d_model, dims.d_ff)

    def splits(self, layer: int) -> dict[str, int]:
        """Outputs of a mixer's first linear and their widths."""
        dims = self.dims
        if not dims.is_full(layer):
            return {"u": dims.n_conv_channels, "z": dims.d_value_all}
        key = dims.n_kv_heads * dims.d_head
        return {"qg": 2 * dims.n_heads * dims.d_head, "k": key, "v": key}

    def wide(self, layer: int, name: str) -> str:
        """Which buffer takes a matrix's bf16 rows."""
        n_rows, n_columns = self.shape(layer, name)
        return f"rows.{n_rows}x{n_columns}"

    def buffers(self) -> dict[str, Scratch]:
        """Scratch by name; those that `schedule.py` has mean the same."""
        dims = self.dims
        heads, kv_heads = (dims.n_heads, dims.d_head), (dims.n_kv_heads, dims.d_head)
        values = (dims.n_value_heads, dims.d_value)
        splits = max(1, ATTENTION_BLOCKS // dims.n_kv_heads)
        gates = (dims.n_value_heads,)
        return {
            "h": Scratch("f32", (dims.d_model,)), "x": Scratch("bf16", (dims.d_model,)),
            "qg": Scratch("f32", (dims.n_heads, 2 * dims.d_head)),
            "q": Scratch("f32", heads), "attn_gate": Scratch("f32", heads),
            "k": Scratch("f32", kv_heads), "v": Scratch("f32", kv_heads),
            "attn_y": Scratch("bf16", heads),
            "u": Scratch("f32", (dims.n_conv_channels,)),
            "qkv": Scratch("f32", (dims.n_conv_channels,)),
            "z": Scratch("f32", values), "o": Scratch("f32", values),
            "gdn_y": Scratch("bf16", values),
            "a": Scratch("f32", gates), "b": Scratch("f32", gates),
            "g": Scratch("f32", gates), "beta": Scratch("f32", gates),
            "gate": Scratch("bf16", (dims.d_ff,)),
            "h_out": Scratch("f32", (dims.d_model,), few=True),
            **{f"logits.{i}": Scratch("f32", (dims.n_vocab,), few=True) for i in range(N_BUFFERS)},
            "best": Scratch("i32", (2,), few=True), "signal": Scratch("f32", (4,), few=True),
            "best_work": Scratch("i64", (work_words(dims.n_vocab),), few=True, zeroed=True),
            "parts": Scratch("f32", (dims.n_heads, splits, dims.d_head), few=True),
            "peaks": Scratch("f32", (dims.n_heads, splits, 2), few=True),
            "arrived": Scratch("i32", (dims.n_kv_heads,), few=True, zeroed=True),
        }

    def wides(self) -> dict[str, Cells]:
        """Where bf16 rows of matrices of other forms are made, each for the product behind it."""
        made: dict[str, Cells] = {}
        for layer in range(self.dims.n_layers):
            for name in ("in", "out", "gate_up", "down"):
                if self.matrices[f"{name}.{layer}"].form != "bf16":
                    made[self.wide(layer, name)] = ("bf16", self.shape(layer, name))
        return made


def mixer(dims: HybridDims, layer: int) -> str:
    """What upstream calls a layer's mixer."""
    return "self_attn" if dims.is_full(layer) else "linear_attn"


def pages(layer: int) -> dict[str, str]:
    """The KV pages of a layer, as arguments."""
    return {"k_pages": f"k_pages.{layer}", "v_pages": f"v_pages.{layer}"}


def suits(dims: HybridDims) -> bool:
    """Whether the widths are whole tiles and rows of 16 bytes."""
    widths = (dims.d_model, dims.d_ff, dims.n_heads * dims.d_head, dims.d_value_all)
    rows = (dims.n_vocab, dims.n_value_heads, dims.n_conv_channels, dims.n_kv_heads * dims.d_head)
    return not any(w % GROUP for w in widths) and not any(n % TILE_ROWS for n in rows)


def matrices(dims: HybridDims, form_of: Callable[[str], Form]) -> dict[str, Matrix] | None:
    """Merged matrices by name, and every other weight under its own as float32; None where the
    parts of a matrix are not in one form, or ops for it are missing."""
    parts: dict[str, tuple[str, ...]] = {
        "embed": ("model.embed_tokens.weight",), "head": ("lm_head.weight",),
    }
    plain = ["model.norm.weight"]
    for layer in range(dims.n_layers):
        prefix = f"model.layers.{layer}"
        block, mlp = f"{prefix}.{mixer(dims, layer)}", f"{prefix}.mlp"
        plain += [f"{prefix}.input_layernorm.weight", f"{prefix}.post_attention_layernorm.weight"]
        if dims.is_full(layer):
            parts[f"in.{layer}"] = tuple(f"{block}.{n}_proj.weight" for n in "qkv")
            parts[f"out.{layer}"] = (f"{block}.o_proj.weight",)
            plain += [f"{block}.q_norm.weight", f"{block}.k_norm.weight"]
        else:
            parts[f"in.{layer}"] = tuple(f"{block}.in_proj_{n}.weight" for n in ("qkv", "z"))
            parts[f"ab.{layer}"] = tuple(f"{block}.in_proj_{n}.weight" for n in "ab")
            parts[f"out.{layer}"] = (f"{block}.out_proj.weight",)
            plain += [
                f"{block}.{n}" for n in ("conv1d.weight", "A_log", "dt_bias", "norm.weight")
            ]
        parts[f"gate_up.{layer}"] = (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight")
        parts[f"down.{layer}"] = (f"{mlp}.down_proj.weight",)
    forms = {name: {form_of(part) for part in of} for name, of in parts.items()}
    if any(len(found) != 1 for found in forms.values()) or not _readable(forms):
        return None
    return {
        **{name: Matrix(parts[name], next(iter(found))) for name, found in forms.items()},
        **{name: Matrix((name,), "f32") for name in plain},
    }


def _readable(forms: Mapping[str, set[Form]]) -> bool:
    """Whether ops for all these forms exist: of the table of ids and of the gates bf16 alone, of
    what a prompt multiplies by no int8 tiles."""
    found = {name: next(iter(form)) for name, form in forms.items()}
    return all(
        form == "bf16" if name == "embed" or name.startswith("ab.")
        else form in NORMED if name == "head" else form in ("bf16", "int4_tiles")
        for name, form in found.items()
    )
