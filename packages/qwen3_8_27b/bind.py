"""Owns the plan that is made from a Qwen3.8-27B .mspec: its weights, states and text parts.

The converter has checked the tensors against the inventory; this checks the file against it again,
since the file may come from anywhere. Names are the text-only upstream ones.
"""

from collections.abc import Mapping

from engine.artifacts.mspec import MspecFile
from engine.chat.template import ChatTemplate
from engine.errors import ModelError
from engine.records import KvShape, ModelPlan, Weight
from engine.tokenizer import Tokenizer
from engine.tokenizer_json import tokenizer_metadata
from packages.package import Artifact
from packages.qwen3_8_27b.dims import HybridDims
from packages.qwen3_8_27b.inventory import Role, inventory
from packages.qwen3_8_27b.schedule import schedule
from packages.text_parts import chat_template

TOKENIZER_OBJECT = "tokenizer.json"
TEMPLATE_OBJECT = "chat_template"


def shapes(dims: HybridDims) -> dict[str, tuple[int, ...]]:
    """Every tensor as the .mspec has it: upstream shapes, the convolution without its unit axis."""
    return {
        name: (expected.shape[0], expected.shape[2]) if expected.role == Role.CONV
        else expected.shape
        for name, expected in inventory(dims).items()
    }


def states(dims: HybridDims) -> dict[str, tuple[int, ...]]:
    """One sequence's recurrent state, by array: raw conv columns and the delta-rule matrix."""
    made: dict[str, tuple[int, ...]] = {}
    for layer in range(dims.n_layers):
        if not dims.is_full(layer):
            made[f"conv.{layer}"] = (dims.conv_width - 1, dims.n_conv_channels)
            made[f"delta.{layer}"] = (dims.n_value_heads, dims.d_value, dims.d_key)
    return made


def bind(file: MspecFile, dims: HybridDims) -> Mapping[str, Weight]:
    """The file's tensors as named weights, read as float32."""
    wanted = shapes(dims)
    extra = [tensor.name for tensor in file.tensors() if tensor.name not in wanted]
    if extra:
        raise ModelError(f"{file.shown}: {len(extra)} tensors too many, first {extra[0]!r}")
    weights = {}
    for name, shape in wanted.items():
        tensor = file.tensor(name)
        if tensor.shape != shape:
            raise ModelError(f"{file.shown}: tensor {name} is {tensor.shape}, needs {shape}")
        weights[name] = Weight(shape, tensor.to_float32)
    return weights


def n_vocab(dims: HybridDims) -> int:
    """How many ids exist."""
    return dims.n_vocab_real


def plan(file: MspecFile, artifact: Artifact) -> ModelPlan:
    """The plan of a served file; ModelError when it contradicts its package."""
    dims: HybridDims = artifact.dims
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(file.text(TOKENIZER_OBJECT)).get)
    if tokenizer.n_vocab > dims.n_vocab:
        raise ModelError(
            f"{file.shown}: {tokenizer.n_vocab} tokens in its vocabulary, {dims.n_vocab} rows"
        )
    template = None
    if TEMPLATE_OBJECT in file.objects:
        template = chat_template(file.text(TEMPLATE_OBJECT), tokenizer)
    return plan_of(artifact, bind(file, dims), tokenizer, template, file.shown)


def plan_of(
    artifact: Artifact, weights: Mapping[str, Weight], tokenizer: Tokenizer,
    template: ChatTemplate | None, shown: str,
) -> ModelPlan:
    """The plan of weights that have this package's shapes."""
    dims: HybridDims = artifact.dims
    return ModelPlan(
        model_id=artifact.identity.model_id,
        weights_id=artifact.content_sha256,
        n_layers=dims.n_layers,
        n_vocab=dims.n_vocab_real,
        n_context=dims.n_context,
        d_model=dims.d_model,
        kv=KvShape(dims.full_layers, dims.n_kv_heads, dims.d_head),
        states=states(dims),
        schedule=schedule(dims),
        weights=weights,
        tokenizer=tokenizer,
        chat_template=template,
        display_path=shown,
    )
