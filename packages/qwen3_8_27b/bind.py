"""Owns the plan that is made from a Qwen3.8-27B .mspec: its weights, states and text parts.

The converter has checked the tensors against the inventory; this checks the file against it again,
since the file may come from anywhere. Names are the text-only upstream ones.
"""

from collections.abc import Callable, Mapping
from functools import partial

from engine.artifacts.mspec import MspecFile
from engine.artifacts.mspec_format import GROUP_FORMATS, DType
from engine.artifacts.mspec_tensor import MspecTensor
from engine.chat.template import ChatTemplate
from engine.compiled.records import Form
from engine.errors import ModelError
from engine.records import KvShape, ModelPlan, Stored, StoredDtype, Weight
from engine.tokenizer import Tokenizer
from engine.tokenizer_json import tokenizer_metadata
from packages.package import Artifact
from packages.qwen3_8_27b.compiled import compiled
from packages.qwen3_8_27b.dims import HybridDims
from packages.qwen3_8_27b.inventory import Role, inventory
from packages.qwen3_8_27b.schedule import schedule
from packages.recipes import Recipe
from packages.text_parts import chat_template

# Float16 has no form on a device of its own: it is read as float32.
STORED: dict[str, StoredDtype] = {
    DType.F32: "f32", DType.F16: "f32", DType.BF16: "bf16", DType.INT4: "int4_group128",
    DType.INT8: "int8_group",
}
FORMS: dict[StoredDtype, Form] = {
    "f32": "f32", "bf16": "bf16", "int4_group128": "int4_tiles", "int8_group": "int8_tiles",
}
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
        weights[name] = Weight(
            shape, tensor.to_float32, dtype=STORED[tensor.dtype],
            load_stored=partial(_stored, tensor),
        )
    return weights


def _stored(tensor: MspecTensor) -> Stored:
    if tensor.dtype in GROUP_FORMATS:
        # The digest was compared. A code of -8, which no converter writes, is -8 to every kernel,
        # and a scale that is not finite ends in logits that are not, which are refused.
        return Stored(*tensor.codes_and_scales(check=False))
    if tensor.dtype == DType.BF16:
        return Stored(tensor.raw().view("<u2").reshape(tensor.shape))
    return Stored(tensor.to_float32())


def stored_form(weights: Mapping[str, Weight], name: str) -> Form:
    """The form that a weight is stored in."""
    return FORMS[weights[name].dtype]


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
    template: ChatTemplate | None, shown: str, form_of: Callable[[str], Form] | None = None,
) -> ModelPlan:
    """The plan of weights that have this package's shapes; on a device with kernels they lie in
    the forms of `form_of`, by default in those that they are stored in."""
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
        compiled=compiled(dims, form_of or partial(stored_form, weights)),
    )


def recipe_forms(dims: HybridDims, recipe: Recipe) -> Callable[[str], Form]:
    """The form that a recipe would store each tensor in."""
    forms = {
        name: FORMS[STORED[recipe.format_of(expected.role, expected.shape).dtype]]
        for name, expected in inventory(dims).items()
    }
    return forms.__getitem__
