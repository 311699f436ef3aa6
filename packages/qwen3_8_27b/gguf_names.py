"""Owns how a `qwen35` GGUF file names and stores upstream's tensors, and the way back.

Storage differs from upstream in four ways, each undone here:

    GAIN       1 + w, of every zero-centred norm      w = g - 1 in float32
    DECAY      -exp(A_log)                            A_log = log(-a), see `_log_decay`
    rows       value heads tiled: position j Nk + k holds head k r + j, r = Nv / Nk; in all rows
               past `first` (past queries and keys), `width` rows for each head
    COLUMNS    the same order, of the columns that read the value heads

Exact, bit for bit, for whatever was stored as is or permuted. A gain is exact where 1 + w was: for
BF16 words of 2^-16 and more in magnitude, and for zero; of smaller ones the part below 2^-24 is
lost in the file itself. A decay is exact for BF16 words of 2^-13 and more, and for zero; otherwise
its exponential is within two float32 steps of the file's. Block formats are decoded exactly.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from engine.artifacts.bf16 import round_to_bf16, widen_bf16
from engine.artifacts.ggml_types import GGML_TYPES
from engine.artifacts.gguf import GgufFile, GgufTensor
from engine.artifacts.mapped_file import printable
from engine.errors import ModelError
from packages.gguf_source import has_rows, rows
from packages.qwen3_8_27b.dims import HybridDims
from packages.sources import Block, SourceTensor

Floats = npt.NDArray[np.float32]
_BLOCK_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")


class Change(Enum):
    """How the numbers are stored, where not as tiled rows."""

    NONE = "as upstream"
    GAIN = "1 + w"
    DECAY = "-exp(A_log)"
    COLUMNS = "tiled columns"


@dataclass(frozen=True)
class Rows:
    """Tiled value heads of `width` rows each, after `first` rows that are as upstream."""

    first: int
    width: int


@dataclass(frozen=True)
class Stored:
    """What a GGUF tensor is: upstream's name and how it is stored. Tiled heads may be decays."""

    upstream: str
    change: Change = Change.NONE
    heads: Rows | None = None


_MODEL = {
    "token_embd.weight": Stored("model.embed_tokens.weight"),
    "output_norm.weight": Stored("model.norm.weight", Change.GAIN),
    "output.weight": Stored("lm_head.weight"),
}
_EVERY_LAYER = {
    "attn_norm.weight": Stored("input_layernorm.weight", Change.GAIN),
    "post_attention_norm.weight": Stored("post_attention_layernorm.weight", Change.GAIN),
    "ffn_gate.weight": Stored("mlp.gate_proj.weight"),
    "ffn_up.weight": Stored("mlp.up_proj.weight"),
    "ffn_down.weight": Stored("mlp.down_proj.weight"),
}
_FULL = {
    "attn_q.weight": Stored("self_attn.q_proj.weight"),
    "attn_k.weight": Stored("self_attn.k_proj.weight"),
    "attn_v.weight": Stored("self_attn.v_proj.weight"),
    "attn_output.weight": Stored("self_attn.o_proj.weight"),
    "attn_q_norm.weight": Stored("self_attn.q_norm.weight", Change.GAIN),
    "attn_k_norm.weight": Stored("self_attn.k_norm.weight", Change.GAIN),
}


def _gdn(dims: HybridDims) -> dict[str, Stored]:
    packed = Rows(2 * dims.n_key_heads * dims.d_key, dims.d_value)
    wide, single = Rows(0, dims.d_value), Rows(0, 1)
    return {
        "attn_qkv.weight": Stored("linear_attn.in_proj_qkv.weight", heads=packed),
        "attn_gate.weight": Stored("linear_attn.in_proj_z.weight", heads=wide),
        "ssm_alpha.weight": Stored("linear_attn.in_proj_a.weight", heads=single),
        "ssm_beta.weight": Stored("linear_attn.in_proj_b.weight", heads=single),
        "ssm_conv1d.weight": Stored("linear_attn.conv1d.weight", heads=packed),
        "ssm_a": Stored("linear_attn.A_log", Change.DECAY, single),
        "ssm_dt.bias": Stored("linear_attn.dt_bias", heads=single),
        # Initialised to ones upstream, so it has no gain of 1 + w.
        "ssm_norm.weight": Stored("linear_attn.norm.weight"),
        "ssm_out.weight": Stored("linear_attn.out_proj.weight", Change.COLUMNS),
    }


def names(dims: HybridDims) -> Mapping[str, Stored]:
    """Every tensor of the text path by its GGUF name."""
    found = dict(_MODEL)
    for layer in range(dims.n_layers):
        mixer = _FULL if dims.is_full(layer) else _gdn(dims)
        for name, stored in {**_EVERY_LAYER, **mixer}.items():
            upstream = f"model.layers.{layer}.{stored.upstream}"
            found[f"blk.{layer}.{name}"] = Stored(upstream, stored.change, stored.heads)
    return found


def upstream_tensors(
    file: GgufFile, dims: HybridDims, n_draft_layers: int
) -> tuple[dict[str, SourceTensor], dict[str, int]]:
    """The file's tensors as upstream's, and how many of the draft layers were left out.

    Draft (MTP) layers come after the model's own. ModelError for a name that is neither.
    """
    known = names(dims)
    tensors: dict[str, SourceTensor] = {}
    left_out: dict[str, int] = {}
    for tensor in file.tensors:
        stored = known.get(tensor.name)
        if stored is not None:
            tensors[stored.upstream] = _as_upstream(tensor, stored, dims)
        elif _is_draft(tensor.name, dims.n_layers, n_draft_layers):
            left_out["mtp"] = left_out.get("mtp", 0) + 1
        else:
            raise ModelError(
                f"{file.shown}: tensor {printable(tensor.name)} is not one of this model's"
            )
    return tensors, left_out


def _is_draft(name: str, n_layers: int, n_draft_layers: int) -> bool:
    matched = _BLOCK_NAME.fullmatch(name)
    return matched is not None and n_layers <= int(matched[1]) < n_layers + n_draft_layers


def _as_upstream(tensor: GgufTensor, stored: Stored, dims: HybridDims) -> SourceTensor:
    shape = tensor.shape
    if stored.upstream.endswith("conv1d.weight") and len(shape) == 2:
        shape = (shape[0], 1, shape[1])
    return SourceTensor(
        tensor.name, GGML_TYPES[tensor.ggml_type].name, shape, has_rows(tensor),
        lambda: (
            block.reshape(len(block), *shape[1:]) for block in _blocks(tensor, stored, dims)
        ),
    )


def _blocks(tensor: GgufTensor, stored: Stored, dims: HybridDims) -> Iterator[Block]:
    """Upstream's rows, of a tensor whose shape was checked."""
    for start, stop in _ranges(tensor.shape[0], stored.heads, dims):
        for block in rows(tensor, start, stop):
            yield _undone(block, stored.change, dims)


def _ranges(n_rows: int, heads: Rows | None, dims: HybridDims) -> Iterator[tuple[int, int]]:
    """Ranges of stored rows in upstream's order."""
    if heads is None:
        yield 0, n_rows
        return
    if heads.first:
        yield 0, heads.first
    n_repeats = dims.n_value_heads // dims.n_key_heads
    for key_head in range(dims.n_key_heads):
        for repeat in range(n_repeats):
            start = heads.first + (repeat * dims.n_key_heads + key_head) * heads.width
            yield start, start + heads.width


def _undone(block: Block, change: Change, dims: HybridDims) -> Block:
    if change is Change.NONE:
        return block
    if change is Change.COLUMNS:
        n_repeats = dims.n_value_heads // dims.n_key_heads
        heads = block.reshape(len(block), n_repeats, dims.n_key_heads, dims.d_value)
        return np.ascontiguousarray(heads.transpose(0, 2, 1, 3)).reshape(block.shape)
    x = widen_bf16(block) if block.dtype == np.uint16 else block.astype(np.float32)
    return x - np.float32(1) if change is Change.GAIN else _log_decay(x)


def _log_decay(a: Floats) -> Floats:
    """a = -exp(A_log) as the file has it -> A_log; NaN, which is refused later, where a >= 0.

    The file's number leaves a small interval of possible logarithms. Upstream stores BF16, so a
    BF16 word in it is upstream's; where there is none, the logarithm itself is taken.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        exact = np.log(-a.astype(np.float64)).astype(np.float32)
    word = widen_bf16(round_to_bf16(exact))
    with np.errstate(invalid="ignore", over="ignore"):
        # Upstream's exp is good to about one float32 step, and so is the file's rounding.
        fits = np.abs(np.exp(word.astype(np.float64)) + a) <= 2 * np.spacing(np.abs(a))
    return np.where(fits, word, exact)
