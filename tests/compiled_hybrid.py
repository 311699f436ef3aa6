"""Owns a small hybrid in the layouts of kernels: written by a recipe, opened on a host device that
passes for one with kernels, so that its ops' references run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.artifacts.mspec import open_mspec
from engine.artifacts.mspec_format import Origin
from engine.artifacts.mspec_writer import MspecWriter
from engine.artifacts.weight_codecs import encode_rows, layout_of
from engine.chunks import Work
from engine.compiled.program import CompiledProgram
from engine.evaluate import evaluate
from engine.model import Model
from engine.options import RuntimeOptions
from engine.records import ModelPlan, Stage
from engine.session import Session
from packages.qwen3_8_27b import PACKAGE
from packages.qwen3_8_27b.bind import TOKENIZER_OBJECT, shapes
from packages.qwen3_8_27b.dims import HybridDims
from packages.qwen3_8_27b.inventory import inventory
from packages.recipes import recipe_named
from ptx.device import Device
from ptx.devices.host import HostDevice
from ptx.numerics import Array
from reference.hybrid import Hybrid
from reference.synthetic import lively
from reference.weights import DictWeights, tensor
from tests import rungs, tiny_hybrid

DIMS: HybridDims = PACKAGE.dims["mini"]
# A layer of each kind: what the emulator has time for.
SHALLOW = replace(DIMS, n_layers=2, full_attention_interval=2)
ORIGIN = Origin("mini hybrid", "test", "0" * 64)


class KernelHost(HostDevice):
    """A host device that says it runs kernels; new memory is poison, as on a card."""

    kind = "gpu"

    def __init__(self) -> None:
        super().__init__(poison=True)


def write(path: Path, recipe: str, dims: HybridDims = DIMS, seed: int = 3) -> Path:
    """A .mspec of lively weights, each tensor in the format of its role."""
    weights, roles = lively(rungs.config_of(dims), seed), inventory(dims)
    chosen = recipe_named(recipe)
    with MspecWriter(path, ORIGIN, "tests") as writer:
        for name, shape in shapes(dims).items():
            dtype = chosen.format_of(roles[name].role, roles[name].shape).dtype
            values = np.asarray(tensor(weights, name), np.float32).reshape(shape)
            blocks = encode_rows(dtype, shape, [values], name)
            writer.write(name, "tensor", dtype, shape, layout_of(dtype), blocks)
        writer.write_text(TOKENIZER_OBJECT, tiny_hybrid.tokenizer_json(dims.n_vocab_real))
        writer.finish()
    return path


def plan_of(path: Path, dims: HybridDims = DIMS) -> ModelPlan:
    """Its plan, which has a compiled schedule."""
    plan = rungs.plan_of(path, dims)
    assert plan.compiled is not None
    return plan


def oracle_of(path: Path, dims: HybridDims = DIMS) -> Hybrid:
    """The oracle on the numbers that the file stands for."""
    with open_mspec(path) as file:
        arrays = {
            t.name: t.to_float32().reshape(inventory(dims)[t.name].shape) for t in file.tensors()
        }
    return Hybrid(DictWeights(arrays), rungs.config_of(dims))


def model_of(plan: ModelPlan, device: Device | None = None, stage: Stage | None = None) -> Model:
    """The plan open on a `KernelHost`, or on another device with kernels; a stage of it."""
    options = RuntimeOptions(
        n_context=256, n_lanes=4, n_batch=64, stage=stage,
        include_output=stage is None or stage.has_output,
    )
    model = Model(plan, options, device or KernelHost())
    assert isinstance(model.program, CompiledProgram)
    return model


def rows(model: Model, session: Session, ids: Sequence[int]) -> Array:
    """Logits [T, V] after each id, committed."""
    evaluation = evaluate(model, [Work(session, list(ids), "all")])
    evaluation.commit()
    return evaluation.rows[0]


def error(found: Array, want: Array) -> float:
    """The largest error of a row, of its own norm."""
    off = np.linalg.norm(found - want[:, : found.shape[1]], axis=1)
    return float((off / np.linalg.norm(want, axis=1)).max())
