"""Owns what a SmolLM2 file must hold, and the plan that is made from it.

The inventory is exact: an extra or differently shaped tensor is refused by name. A stage's parts
hold some of the tensors only; what runs needs which is the engine's to check.
"""

from collections.abc import Mapping
from functools import partial

from engine.artifacts.gguf import GgufFile
from engine.chat.template import ChatTemplate
from engine.errors import ModelError
from engine.records import KvShape, ModelPlan, Weight
from engine.tokenizer import Tokenizer
from packages.package import Artifact
from packages.smollm2_135m.dims import DenseDims
from packages.smollm2_135m.schedule import schedule
from packages.text_parts import gguf_chat_template, gguf_tokenizer

# Dims field -> metadata key, all of the `llama` architecture.
KEYS = {
    "n_layers": "llama.block_count",
    "d_model": "llama.embedding_length",
    "d_ff": "llama.feed_forward_length",
    "n_heads": "llama.attention.head_count",
    "n_kv_heads": "llama.attention.head_count_kv",
    "d_head": "llama.rope.dimension_count",
    "n_vocab": "llama.vocab_size",
    "n_context": "llama.context_length",
    "norm_eps": "llama.attention.layer_norm_rms_epsilon",
    "rope_theta": "llama.rope.freq_base",
}


def read_dims(file: GgufFile) -> DenseDims:
    """The dims that a file states; ModelError naming a key that is absent or not a number."""
    values = {}
    for field, key in KEYS.items():
        value = file.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{file.shown}: metadata {key} is {value!r}, a number is needed")
        # Metadata floats are float32: 1e-5 arrives as its nearest neighbour.
        values[field] = float(f"{value:.7g}") if isinstance(value, float) else value
    return DenseDims(**values)  # type: ignore[arg-type]


def shapes(dims: DenseDims) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model with its shape, outermost dimension first."""
    d_q, d_kv = dims.n_heads * dims.d_head, dims.n_kv_heads * dims.d_head
    block = {
        "attn_norm.weight": (dims.d_model,),
        "attn_q.weight": (d_q, dims.d_model),
        "attn_k.weight": (d_kv, dims.d_model),
        "attn_v.weight": (d_kv, dims.d_model),
        "attn_output.weight": (dims.d_model, d_q),
        "ffn_norm.weight": (dims.d_model,),
        "ffn_gate.weight": (dims.d_ff, dims.d_model),
        "ffn_up.weight": (dims.d_ff, dims.d_model),
        "ffn_down.weight": (dims.d_model, dims.d_ff),
    }
    inventory: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (dims.n_vocab, dims.d_model),
        "output_norm.weight": (dims.d_model,),
    }
    for index in range(dims.n_layers):
        inventory.update({f"blk.{index}.{name}": shape for name, shape in block.items()})
    return inventory


def bind(file: GgufFile, dims: DenseDims) -> Mapping[str, Weight]:
    """The file's tensors as named weights, read as float32 and checked for NaN and infinity.

    A tensor that the file does not hold is a weight that is not present.
    """
    wanted = shapes(dims)
    extra = [tensor.name for tensor in file.tensors if tensor.name not in wanted]
    if extra:
        raise ModelError(f"{file.shown}: {len(extra)} tensors too many, first {extra[0]!r}")
    weights = {}
    for name, shape in wanted.items():
        if name not in file:
            weights[name] = Weight(shape, partial(file.tensor, name), is_present=False)
            continue
        tensor = file.tensor(name)
        if tensor.shape != shape:
            raise ModelError(f"{file.shown}: tensor {name} is {tensor.shape}, needs {shape}")
        tensor.require_decoder()
        weights[name] = Weight(shape, partial(tensor.to_float32, check_finite=True))
    return weights


def n_vocab(dims: DenseDims) -> int:
    """How many ids exist."""
    return dims.n_vocab


def plan(file: GgufFile, artifact: Artifact) -> ModelPlan:
    """The plan of a served file; ModelError when it contradicts its package."""
    dims: DenseDims = artifact.dims
    stated = read_dims(file)
    if stated != dims:
        raise ModelError(f"{file.shown}: states {stated}, its package has {dims}")
    tokenizer = gguf_tokenizer(file, dims.n_vocab)
    template = gguf_chat_template(file, tokenizer)
    return plan_of(artifact, bind(file, dims), tokenizer, template, file.shown)


def plan_of(
    artifact: Artifact, weights: Mapping[str, Weight], tokenizer: Tokenizer,
    template: ChatTemplate | None, shown: str,
) -> ModelPlan:
    """The plan of weights that have this package's shapes."""
    dims: DenseDims = artifact.dims
    return ModelPlan(
        model_id=artifact.identity.model_id,
        weights_id=artifact.content_sha256,
        n_layers=dims.n_layers,
        n_vocab=dims.n_vocab,
        n_context=dims.n_context,
        d_model=dims.d_model,
        kv=KvShape(tuple(range(dims.n_layers)), dims.n_kv_heads, dims.d_head),
        states={},
        schedule=schedule(dims),
        weights=weights,
        tokenizer=tokenizer,
        chat_template=template,
        display_path=shown,
    )
