"""Owns writing weights as an upstream checkpoint: shards, index, config.json, tokenizer.

Tensors are written block by block, so the folder may be far larger than memory. The names are those
of the public checkpoints, with or without the multimodal shell and its vision tower.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reference import safetensors
from reference.checkpoint import INDEX, MULTIMODAL_PREFIX, SINGLE, TEXT_PREFIX, VISION_PREFIX
from reference.config import Config, Shape
from reference.errors import OracleError
from reference.weights import Weights, blocks

VISION = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "in_channels": 3,
    "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
    "num_position_embeddings": 16,
}
TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# A tensor that only fills its place: the text path must never read it.
DUMMY = 0.0078125


def vision_tensors(d_model: int) -> dict[str, Shape]:
    """Stored name -> shape of a small vision tower that ends in the text model's width."""
    width, ff, merged = 32, 48, 128
    table: dict[str, Shape] = {
        "patch_embed.proj.weight": (width, 3, 2, 4, 4),
        "patch_embed.proj.bias": (width,),
        "pos_embed.weight": (16, width),
    }
    for block in range(2):
        for part, shape in (
            ("norm1", (width,)), ("norm2", (width,)), ("attn.qkv", (3 * width, width)),
            ("attn.proj", (width, width)), ("mlp.linear_fc1", (ff, width)),
            ("mlp.linear_fc2", (width, ff)),
        ):
            table[f"blocks.{block}.{part}.weight"] = shape
            table[f"blocks.{block}.{part}.bias"] = shape[:1]
    for part, shape in (
        ("norm", (width,)), ("linear_fc1", (merged, merged)), ("linear_fc2", (d_model, merged)),
    ):
        table[f"merger.{part}.weight"] = shape
        table[f"merger.{part}.bias"] = shape[:1]
    return {VISION_PREFIX + name: shape for name, shape in table.items()}


def stored_name(name: str, naming: str) -> str:
    """A text-only name as the file spells it: `naming` is "multimodal" or "text"."""
    if naming not in {"multimodal", "text"}:
        raise OracleError(f"naming {naming!r} is neither 'multimodal' nor 'text'")
    if naming == "text" or not name.startswith(TEXT_PREFIX):
        return name
    return MULTIMODAL_PREFIX + name.removeprefix(TEXT_PREFIX)


def write_checkpoint(
    folder: Path | str, weights: Weights, config: Config, *, dtype: str = "BF16",
    vector_dtype: str | None = None, naming: str = "multimodal", mtp: bool = True,
    vision: bool = False, shard_bytes: int | None = None, tokenizer: bytes | None = None,
    extra: dict[str, Any] | None = None,
) -> None:
    """Write `weights` into an existing or new folder.

    dtype: BF16, F16 or F32; vector_dtype: that of A_log, dt_bias and norms, if another; mtp and
    vision: which groups to write; shard_bytes: start a new shard past that many, None for one
    file; tokenizer: bytes of a tokenizer.json; extra: more top-level fields of config.json.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sources: dict[str, str | None] = {}
    tensors: dict[str, tuple[str, Shape]] = {}
    for name, shape in config.tensors(mtp).items():
        stored = stored_name(name, naming)
        sources[stored] = name
        tensors[stored] = ((vector_dtype or dtype) if len(shape) == 1 else dtype, shape)
    if vision:
        for stored, shape in vision_tensors(config.d_model).items():
            sources[stored], tensors[stored] = None, (dtype, shape)

    def pieces(stored: str) -> Iterator[bytes]:
        word, shape = tensors[stored]
        source = sources[stored]
        for start, stop in blocks(shape):
            if source is None:
                values = np.full((stop - start, *shape[1:]), DUMMY)
            else:
                values = weights.rows(source, start, stop)
            yield safetensors.encode(values, word)

    groups = _shards(tensors, shard_bytes)
    names = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    for name, group in zip(names if len(groups) > 1 else [SINGLE], groups, strict=True):
        safetensors.write(folder / name, {stored: tensors[stored] for stored in group}, pieces)
    if len(groups) > 1:
        total = sum(safetensors.stored_bytes(*entry) for entry in tensors.values())
        where: dict[str, str] = {}
        for name, group in zip(names, groups, strict=True):
            where |= dict.fromkeys(group, name)
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    document = config.to_json(naming == "multimodal")
    document |= {"dtype": TORCH_NAMES[dtype]} | (extra or {})
    if vision:
        document["vision_config"] = {
            "model_type": "qwen3_5_vision", **VISION, "out_hidden_size": config.d_model,
        }
    _write_json(folder / "config.json", document)
    if tokenizer is not None:
        (folder / "tokenizer.json").write_bytes(tokenizer)


def _shards(tensors: dict[str, tuple[str, Shape]], limit: int | None) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    held = 0
    for stored, entry in tensors.items():
        n_bytes = safetensors.stored_bytes(*entry)
        if limit is not None and groups[-1] and held + n_bytes > limit:
            groups.append([])
            held = 0
        groups[-1].append(stored)
        held += n_bytes
    return groups


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
