"""Owns conversion: a checkpoint folder or a GGUF file into an .mspec file, by a recipe.

Tensor by tensor and block by block, so memory does not grow with the model. What is written depends
on source, package and recipe only: text objects first, then tensors in the inventory's order. A run
that was killed goes on where it ended (`MspecWriter`), unless the source changed. Contract of
sources: `sources.py`; of number formats: `recipes.py`.
"""

import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from engine.artifacts.mapped_file import printable
from engine.artifacts.mspec_format import Kind, Origin, layout_of, object_bytes
from engine.artifacts.mspec_writer import MspecWriter
from engine.artifacts.output_file import refuse_input_as_output
from engine.artifacts.weight_codecs import encode_rows
from engine.errors import InvalidArgument, ModelError
from packages.checkpoint_source import CheckpointSource
from packages.convert_report import Converted, Report
from packages.gguf_source import GgufSource
from packages.recipes import Recipe, recipe_named
from packages.sources import (
    CHAT_TEMPLATE,
    CONFIG,
    TOKENIZER,
    Block,
    Convertible,
    Expected,
    Source,
    SourceTensor,
    Text,
)

CONVERTIBLE = ("qwen3_8_27b",)
CONV_ROLE = "conv"
Progress = Callable[[int, int], None]


def convert(
    src: Path,
    dst: Path,
    *,
    package: str,
    recipe: str,
    progress: Progress,
    model_id: str | None = None,
) -> Report:
    """Write `dst` from `src`, a checkpoint folder or a GGUF file.

    `package` is a key, with `:twin` for a twin; `model_id` defaults to the package's. `progress`
    gets bytes of objects done and in all; whatever it raises ends the run, which can be resumed.
    ModelError for a source that is not just this model, and nothing is left behind then;
    InvalidArgument for a package, recipe or id that is not one; IoFailure when the system refuses.
    """
    model, chosen = convertible(package), recipe_named(recipe)
    origin = Origin(model_id or model.model_id, chosen.name, chosen.sha256(model.key))
    source = _open_source(src, model)
    try:
        refuse_input_as_output(dst, source.file_ids)
        plan = _plan(source, model, chosen)
        texts = {CONFIG: _config(model), **source.texts}
        with MspecWriter(dst, origin, source.identity) as writer:
            try:
                n_resumed = writer.n_bytes
                n_bytes = _write(writer, texts, plan, source, progress)
                source.require_unchanged()
            except ModelError:
                # Nobody will go on from here: another run needs another source.
                writer.abort()
                raise
            weights_id = writer.finish()
    finally:
        source.close()
    return Report(
        origin.model_id, model.key, chosen.name, origin.recipe_sha256, weights_id, source.shown,
        source.n_bytes, n_bytes, n_resumed, tuple(plan), dict(source.left_out), _notes(source),
    )


def convertible(package: str) -> Convertible:
    """What a package says for conversion; InvalidArgument names the packages and twins."""
    key, colon, twin = package.partition(":")
    if key in CONVERTIBLE:
        module = importlib.import_module(f"packages.{key}.conversion")
        if twin in module.twins() and bool(colon) == bool(twin):
            found: Convertible = module.convertible(twin)
            return found
    there = [
        f"{name}:{twin}" if twin else name
        for name in CONVERTIBLE
        for twin in importlib.import_module(f"packages.{name}.conversion").twins()
    ]
    raise InvalidArgument(f"package {printable(package, 80)}: there are {', '.join(there)}")


def _open_source(src: Path, model: Convertible) -> Source:
    # Not src.is_dir(), which raises for a name that is too long or a folder that is closed.
    return CheckpointSource(src, model) if os.path.isdir(src) else GgufSource(src, model)


def _plan(source: Source, model: Convertible, recipe: Recipe) -> list[Converted]:
    """Every tensor in the order of writing; ModelError where the source is not the inventory."""
    extra = [tensor for name, tensor in source.tensors.items() if name not in model.inventory]
    missing = [name for name in model.inventory if name not in source.tensors]
    if extra:
        raise ModelError(
            f"{source.shown}: {len(extra)} tensors that {model.key} has not:"
            f" {_listed(tensor.stored for tensor in extra)}"
        )
    if missing:
        raise ModelError(f"{source.shown}: {len(missing)} tensors missing: {_listed(missing)}")
    return [
        _planned(name, expected, source.tensors[name], source.shown, recipe)
        for name, expected in model.inventory.items()
    ]


def _planned(
    name: str, expected: Expected, tensor: SourceTensor, source: str, recipe: Recipe
) -> Converted:
    what = f"{source}: tensor {printable(tensor.stored)}"
    if tensor.shape != expected.shape:
        raise ModelError(f"{what} is {list(tensor.shape)}, needs {list(expected.shape)}")
    if not tensor.is_float:
        raise ModelError(f"{what} is {tensor.dtype}, a float format that can be read is needed")
    shape = expected.shape
    if expected.role == CONV_ROLE:
        # One input channel for each output channel: the op reads [channels, taps].
        shape = shape[:1] + shape[2:]
    chosen = recipe.format_of(expected.role, shape)
    n_bytes = object_bytes(Kind.TENSOR, chosen.dtype, shape, layout_of(chosen.dtype))
    return Converted(name, tensor.stored, tensor.dtype, shape, expected.role, chosen, n_bytes)


def _write(
    writer: MspecWriter, texts: dict[str, Text], plan: list[Converted], source: Source,
    progress: Progress,
) -> int:
    """Write what is not done yet; the bytes of all objects."""
    total = sum(tensor.n_bytes for tensor in plan)
    total += sum(len(text.text.encode()) for text in texts.values())
    progress(writer.n_bytes, total)

    def counted(chunks: Iterable[Block]) -> Iterator[Block]:
        done = writer.n_bytes
        for chunk in chunks:
            yield chunk
            done += chunk.nbytes
            progress(done, total)

    for name, text in texts.items():
        if name not in writer.done:
            writer.write_text(name, text.text, text.kind)
    for tensor in plan:
        if tensor.name not in writer.done:
            dtype, shape = tensor.format.dtype, tensor.shape
            chunks = encode_rows(
                dtype, shape, _rows(source.tensors[tensor.name], shape),
                f"{source.shown}: tensor {printable(tensor.stored)}",
            )
            writer.write(
                tensor.name, Kind.TENSOR, dtype, shape, layout_of(dtype), counted(chunks)
            )
    return total


def _rows(tensor: SourceTensor, shape: tuple[int, ...]) -> Iterator[Block]:
    for block in tensor.blocks():
        yield block.reshape(len(block), *shape[1:])


def _config(model: Convertible) -> Text:
    """The package and all its dims, in canonical JSON."""
    said = {"dims": asdict(model.dims), "package": model.key}
    return Text(Kind.JSON, json.dumps(said, sort_keys=True, separators=(",", ":")))


def _notes(source: Source) -> tuple[str, ...]:
    notes = []
    if TOKENIZER not in source.texts:
        notes.append("no tokenizer: the file can be run by token ids only")
    if CHAT_TEMPLATE not in source.texts:
        notes.append("no chat template")
    return tuple(notes)


def _listed(names: Iterable[str]) -> str:
    """The first few names."""
    found = [printable(name, 120) for name in names]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more
