"""Owns the dimensions of a hybrid model, their `config.json` form and the tensors they imply.

It reads every number from the file: a rotary base that is not written there is an error, because
the usual library default (10000) is silently wrong for this family. It must not know arithmetic.
It is long because it holds tables: the fields, what is fixed, the tensors, the test sizes.
"""

import math
from dataclasses import dataclass
from typing import Any

from reference.errors import OracleError

Shape = tuple[int, ...]

# Past these a file is not a model, and tables of its size would be the first thing to fail.
MAX_DIMENSION, MAX_LAYERS = 1 << 28, 4096


@dataclass(frozen=True)
class Yarn:
    """Static context extension: stretch `factor` over an original length in tokens."""

    factor: float
    original_positions: int


@dataclass(frozen=True)
class Config:
    """Dimensions of the text model; letters of the specification in brackets.

    `n_vocab_real`: ids at or past it are padding rows and never win; None means all rows are real.
    """

    n_vocab: int  # V
    d_model: int  # H
    d_ff: int  # I
    n_layers: int  # L
    n_heads: int  # Nq
    n_kv_heads: int  # Nkv
    d_head: int  # D
    d_rotary: int  # R
    mrope_section: tuple[int, int, int]
    n_key_heads: int  # Nk
    n_value_heads: int  # Nv
    d_key: int  # Dk
    d_value: int  # Dv
    theta: float = 1e7
    eps: float = 1e-6
    conv_width: int = 4  # W
    full_attention_interval: int = 4
    n_mtp: int = 1
    max_positions: int = 262144
    yarn: Yarn | None = None
    n_vocab_real: int | None = None

    def __post_init__(self) -> None:
        """OracleError when dimensions contradict each other."""
        for name in FIELDS.values():
            value, least = getattr(self, name), 0 if name == "n_mtp" else 1
            if name != "eps" and not least <= value <= MAX_DIMENSION:
                raise OracleError(f"{name} {value} is not within {least}..{MAX_DIMENSION}")
        if self.n_layers > MAX_LAYERS or self.n_mtp > 1:
            raise OracleError(f"{self.n_layers} layers, {self.n_mtp} MTP: at most {MAX_LAYERS}, 1")
        if not (self.eps > 0.0 and 1.0 < self.theta < math.inf):
            raise OracleError(f"eps {self.eps} is not positive, or theta {self.theta} not above 1")
        if self.yarn and not (1.0 <= self.yarn.factor < math.inf and self.yarn.original_positions):
            raise OracleError(f"{self.yarn}: factor below 1 or no original length")
        for whole, part in (("n_heads", "n_kv_heads"), ("n_value_heads", "n_key_heads")):
            many, few = getattr(self, whole), getattr(self, part)
            if few < 1 or many % few:
                raise OracleError(f"{whole} {many} is no multiple of {part} {few}")
        if not 0 < self.d_rotary <= self.d_head or self.d_rotary % 2:
            raise OracleError(f"rotary width {self.d_rotary} is not even within 2..{self.d_head}")
        if sum(self.mrope_section) != self.d_rotary // 2 or min(self.mrope_section) < 0:
            pairs = self.d_rotary // 2
            raise OracleError(f"mrope_section {self.mrope_section} does not add up to {pairs}")
        if self.n_vocab_real is not None and not 0 < self.n_vocab_real <= self.n_vocab:
            raise OracleError(f"n_vocab_real {self.n_vocab_real} is not within 1..{self.n_vocab}")

    @property
    def conv_channels(self) -> int:
        """Width of the GDN convolution: query, key, then value blocks."""
        return 2 * self.n_key_heads * self.d_key + self.n_value_heads * self.d_value

    def is_full(self, layer: int) -> bool:
        """Whether a layer is full attention; the others are GDN."""
        return (layer + 1) % self.full_attention_interval == 0

    def tensors(self, mtp: bool = True) -> dict[str, Shape]:
        """Text-only tensor name -> shape, in checkpoint order; with the MTP head if it exists."""
        found: dict[str, Shape] = {"model.embed_tokens.weight": (self.n_vocab, self.d_model)}
        for layer in range(self.n_layers):
            found |= self._layer(f"model.layers.{layer}.", self.is_full(layer))
        found["model.norm.weight"] = (self.d_model,)
        found["lm_head.weight"] = (self.n_vocab, self.d_model)
        if mtp and self.n_mtp:
            found["mtp.pre_fc_norm_embedding.weight"] = (self.d_model,)
            found["mtp.pre_fc_norm_hidden.weight"] = (self.d_model,)
            found["mtp.fc.weight"] = (self.d_model, 2 * self.d_model)
            found |= self._layer("mtp.layers.0.", True)
            found["mtp.norm.weight"] = (self.d_model,)
        return found

    def _layer(self, prefix: str, full: bool) -> dict[str, Shape]:
        width, values = self.d_model, self.n_value_heads * self.d_value
        mixer: dict[str, Shape] = {
            "self_attn.q_proj.weight": (self.n_heads * 2 * self.d_head, width),
            "self_attn.k_proj.weight": (self.n_kv_heads * self.d_head, width),
            "self_attn.v_proj.weight": (self.n_kv_heads * self.d_head, width),
            "self_attn.o_proj.weight": (width, self.n_heads * self.d_head),
            "self_attn.q_norm.weight": (self.d_head,),
            "self_attn.k_norm.weight": (self.d_head,),
        } if full else {
            "linear_attn.in_proj_qkv.weight": (self.conv_channels, width),
            "linear_attn.in_proj_z.weight": (values, width),
            "linear_attn.in_proj_a.weight": (self.n_value_heads, width),
            "linear_attn.in_proj_b.weight": (self.n_value_heads, width),
            "linear_attn.conv1d.weight": (self.conv_channels, 1, self.conv_width),
            "linear_attn.A_log": (self.n_value_heads,),
            "linear_attn.dt_bias": (self.n_value_heads,),
            "linear_attn.norm.weight": (self.d_value,),
            "linear_attn.out_proj.weight": (width, values),
        }
        shared: dict[str, Shape] = {
            "input_layernorm.weight": (width,),
            "post_attention_layernorm.weight": (width,),
            "mlp.gate_proj.weight": (self.d_ff, width),
            "mlp.up_proj.weight": (self.d_ff, width),
            "mlp.down_proj.weight": (width, self.d_ff),
        }
        return {prefix + name: shape for name, shape in (mixer | shared).items()}

    def to_json(self, multimodal: bool = True) -> dict[str, Any]:
        """The `config.json` that states these dimensions, with or without the multimodal shell."""
        rope: dict[str, Any] = {
            "rope_type": "yarn" if self.yarn else "default",
            "rope_theta": self.theta,
            "partial_rotary_factor": self.d_rotary / self.d_head,
            "mrope_section": list(self.mrope_section),
            "mrope_interleaved": True,
        }
        if self.yarn:
            rope["factor"] = self.yarn.factor
            rope["original_max_position_embeddings"] = self.yarn.original_positions
        text = {key: getattr(self, name) for key, name in FIELDS.items()} | FIXED | {
            "model_type": "qwen3_5_text",
            "layer_types": [
                "full_attention" if self.is_full(layer) else "linear_attention"
                for layer in range(self.n_layers)
            ],
            "rope_parameters": rope,
        }
        if not multimodal:
            return {"architectures": ["Qwen3_5ForCausalLM"], **text}
        return {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "tie_word_embeddings": False,
            "text_config": text,
        }

    @classmethod
    def from_json(cls, document: Any) -> "Config":
        """Dimensions from a parsed `config.json`; OracleError names a missing or foreign field."""
        text = document.get("text_config", document) if isinstance(document, dict) else document
        if not isinstance(text, dict):
            raise OracleError(f"config.json holds {type(text).__name__}, not an object")
        if text.get("model_type") != "qwen3_5_text":
            raise OracleError(f"model_type {text.get('model_type')!r}, not 'qwen3_5_text'")
        for key, want in FIXED.items():
            if text.get(key, want) != want:
                raise OracleError(f"config.json: {key} is {text[key]!r}, specified is {want!r}")
        numbers = {name: _number(text, key, DEFAULTS.get(key)) for key, name in FIELDS.items()}
        config = cls(**numbers, **_rope(text, int(numbers["d_head"])))
        kinds = config.to_json(False)["layer_types"]
        if text.get("layer_types", kinds) != kinds:
            interval = config.full_attention_interval
            raise OracleError(f"layer_types is not full attention in every layer of {interval}")
        return config


def _number(text: dict[str, Any], key: str, default: Any = None) -> Any:
    value = text.get(key, default)
    kinds = int | float if key == "rms_norm_eps" else int
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise OracleError(f"config.json: {key} is {value!r}, not a number of its kind")
    return value


def _rope(text: dict[str, Any], d_head: int) -> dict[str, Any]:
    """The rotary fields of Config; every one is read from the file, none is assumed."""
    rope = text.get("rope_parameters")
    if not isinstance(rope, dict):
        raise OracleError("config.json: rope_parameters is missing; its base has no safe default")
    missing = {"rope_type", "rope_theta", "partial_rotary_factor", "mrope_section"} - set(rope)
    if missing:
        raise OracleError(f"config.json: rope_parameters lacks {', '.join(sorted(missing))}")
    known = {"mrope_interleaved", "factor", "original_max_position_embeddings", "rope_type",
             "rope_theta", "partial_rotary_factor", "mrope_section"}
    if set(rope) - known or not rope.get("mrope_interleaved", True):
        raise OracleError(f"rope_parameters {rope}: only {', '.join(sorted(known))} are specified")
    if rope["rope_type"] not in {"default", "yarn"}:
        raise OracleError(f"rope_type {rope['rope_type']!r} is neither 'default' nor 'yarn'")
    try:
        first, second, third = (int(pairs) for pairs in rope["mrope_section"])
        found = {
            "theta": float(rope["rope_theta"]),
            "d_rotary": int(d_head * float(rope["partial_rotary_factor"])),
            "mrope_section": (first, second, third),
        }
        if rope["rope_type"] == "yarn":
            length = int(rope["original_max_position_embeddings"])
            found["yarn"] = Yarn(float(rope["factor"]), length)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise OracleError(f"rope_parameters {rope}: {error!r}") from error
    return found


# config.json key -> field of Config.
FIELDS = {
    "vocab_size": "n_vocab",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "d_head",
    "linear_num_key_heads": "n_key_heads",
    "linear_num_value_heads": "n_value_heads",
    "linear_key_head_dim": "d_key",
    "linear_value_head_dim": "d_value",
    "linear_conv_kernel_dim": "conv_width",
    "rms_norm_eps": "eps",
    "full_attention_interval": "full_attention_interval",
    "mtp_num_hidden_layers": "n_mtp",
    "max_position_embeddings": "max_positions",
}
# What an export may leave out: other libraries drop these two when they save.
DEFAULTS = {"full_attention_interval": 4, "mtp_num_hidden_layers": 0}
# What the specification fixes; any other value is another model.
FIXED: dict[str, Any] = {
    "attention_bias": False,
    "attn_output_gate": True,
    "hidden_act": "silu",
    "mamba_ssm_dtype": "float32",
    "mtp_use_dedicated_embeddings": False,
    "tie_word_embeddings": False,
}

# Small enough for host arithmetic; every structural ratio of the 27B model is kept.
TINY = Config(
    n_vocab=320, d_model=96, d_ff=160, n_layers=8, n_heads=6, n_kv_heads=1, d_head=32, d_rotary=16,
    mrope_section=(3, 3, 2), n_key_heads=2, n_value_heads=6, d_key=16, d_value=16,
)
# The head sizes of the 27B model, for kernels.
MINI = Config(
    n_vocab=1024, d_model=512, d_ff=1024, n_layers=8, n_heads=6, n_kv_heads=1, d_head=256,
    d_rotary=64, mrope_section=(11, 11, 10), n_key_heads=2, n_value_heads=6, d_key=128, d_value=128,
)
