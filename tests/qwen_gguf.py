"""Owns writing upstream weights as a `qwen35` GGUF file, laid out as llama.cpp reads it.

Written from llama.cpp's side, so that it checks the package's mapping instead of repeating it:
gains and decays are stored ready to use, and value heads tiled over key heads.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from engine.artifacts import ggml_types, quants
from engine.artifacts.ggml_types import GGML_TYPES
from engine.artifacts.gguf_types import GgufValue, ValueType
from engine.artifacts.gguf_writer import TensorSource, write_gguf
from engine.tokenizer_json import tokenizer_metadata
from engine.vocabulary import UNUSED
from reference.config import Config
from reference.weights import Weights, tensor

LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}
MODEL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
Encode = Callable[[np.ndarray], bytes]
Change = Callable[[str, np.ndarray], np.ndarray]
Pair = tuple[str, GgufValue]


def gguf_name(name: str) -> str:
    """llama.cpp's name of an upstream tensor."""
    if name in MODEL_NAMES:
        return MODEL_NAMES[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{LAYER_NAMES[rest]}"


def as_stored(name: str, x: np.ndarray, config: Config) -> np.ndarray:
    """x of upstream's shape in float32 -> the float32 numbers of the file."""
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return x + np.float32(1)
    if "linear_attn" not in name or name.endswith("norm.weight"):
        return x
    if name.endswith("A_log"):
        return tiled(-np.exp(x), 0, 1, config)
    if name.endswith("out_proj.weight"):
        return np.ascontiguousarray(tiled(x.T, 0, config.d_value, config).T)
    if name.endswith("conv1d.weight"):
        x = x[:, 0]
    if name.endswith(("conv1d.weight", "in_proj_qkv.weight")):
        return tiled(x, 2 * config.n_key_heads * config.d_key, config.d_value, config)
    return tiled(x, 0, config.d_value if name.endswith("in_proj_z.weight") else 1, config)


def tiled(x: np.ndarray, first: int, width: int, config: Config) -> np.ndarray:
    """Rows past `first`: heads that share a key head are neighbours upstream, strided here."""
    n_repeats = config.n_value_heads // config.n_key_heads
    heads = x[first:].reshape(config.n_key_heads, n_repeats, width, *x.shape[1:])
    return np.concatenate([x[:first], heads.swapaxes(0, 1).reshape(-1, *x.shape[1:])])


def metadata(config: Config, tokenizer: str | None, template: str | None) -> list[Pair]:
    """All metadata; without a tokenizer the file says that it has no vocabulary."""
    of, u32 = GgufValue.of, ValueType.UINT32
    numbers = {
        "block_count": config.n_layers, "context_length": config.max_positions,
        "embedding_length": config.d_model, "feed_forward_length": config.d_ff,
        "attention.head_count": config.n_heads, "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.d_head, "attention.value_length": config.d_head,
        "rope.dimension_count": config.d_rotary, "vocab_size": config.n_vocab,
        "full_attention_interval": config.full_attention_interval,
        "ssm.conv_kernel": config.conv_width, "ssm.state_size": config.d_key,
        "ssm.group_count": config.n_key_heads, "ssm.time_step_rank": config.n_value_heads,
        "ssm.inner_size": config.n_value_heads * config.d_value,
    }
    floats = {"attention.layer_norm_rms_epsilon": config.eps, "rope.freq_base": config.theta}
    pairs = [("general.architecture", of(ValueType.STRING, "qwen35"))]
    pairs += [(f"qwen35.{key}", of(u32, value)) for key, value in numbers.items()]
    pairs += [(f"qwen35.{key}", of(ValueType.FLOAT32, value)) for key, value in floats.items()]
    sections = GgufValue.array(ValueType.INT32, [*config.mrope_section, 0])
    pairs.append(("qwen35.rope.dimension_sections", sections))
    if tokenizer is None:
        return [*pairs, ("tokenizer.ggml.model", of(ValueType.STRING, "no_vocab"))]
    if template is not None:
        pairs.append(("tokenizer.chat_template", of(ValueType.STRING, template)))
    return [*pairs, *_vocabulary(tokenizer, config.n_vocab)]


def write(
    path: Path, weights: Weights, config: Config, *, ggml_type: int = ggml_types.F32,
    encode: Encode | None = None, tokenizer: str | None = None, template: str | None = None,
    change: Change = lambda name, x: x, more: Sequence[Pair] = (),
    extra: Sequence[TensorSource] = (),
) -> Path:
    """Write all text tensors; matrices as `ggml_type`, the rest as F32.

    `encode` makes the bytes of a matrix where `quants.encode` cannot; `change` may replace what is
    stored; `more` replaces or adds metadata; `extra` are further tensors.
    """
    pairs = dict(metadata(config, tokenizer, template)) | dict(more)

    def sources() -> Iterator[TensorSource]:
        for name in config.tensors(mtp=False):
            x = as_stored(name, np.asarray(tensor(weights, name), np.float32), config)
            x = change(gguf_name(name), np.ascontiguousarray(x))
            is_matrix = x.ndim == 2 and "conv1d" not in name
            kind = ggml_type if is_matrix else ggml_types.F32
            if is_matrix and encode is not None:
                data = encode(x)
                yield TensorSource(gguf_name(name), x.shape[::-1], kind, len(data), (data,))
            else:
                yield TensorSource.from_array(gguf_name(name), x, kind)

    write_gguf(path, list(pairs.items()), [*sources(), *extra])
    return path


def decoded(x: np.ndarray, ggml_type: int, encode: Encode | None = None) -> np.ndarray:
    """The float32 numbers that x has after a way through a format."""
    raw = encode(x) if encode else quants.encode(x, ggml_type)
    out = np.empty(x.size, np.float32)
    quants.decode_into(np.frombuffer(raw, np.uint8), ggml_type, out)
    assert GGML_TYPES[ggml_type].block_elements <= x.shape[-1]
    return out.reshape(x.shape)


def _vocabulary(tokenizer: str, n_vocab: int) -> list[Pair]:
    """The keys of a tokenizer.json, padded to the rows of the embedding as llama.cpp pads."""
    keys = dict(tokenizer_metadata(tokenizer))
    n_padding = n_vocab - len(keys["tokenizer.ggml.tokens"])
    tokens = [*keys["tokenizer.ggml.tokens"], *(f"[PAD{i}]" for i in range(n_padding))]
    types = [*keys["tokenizer.ggml.token_type"], *[UNUSED] * n_padding]
    string, array = ValueType.STRING, GgufValue.array
    return [
        ("tokenizer.ggml.model", GgufValue.of(string, keys["tokenizer.ggml.model"])),
        ("tokenizer.ggml.pre", GgufValue.of(string, keys["tokenizer.ggml.pre"])),
        ("tokenizer.ggml.tokens", array(string, tokens)),
        ("tokenizer.ggml.token_type", array(ValueType.INT32, types)),
        ("tokenizer.ggml.merges", array(string, keys["tokenizer.ggml.merges"])),
        ("tokenizer.ggml.add_bos_token", GgufValue.of(ValueType.BOOL, False)),
    ]
