"""Owns the checkpoints that the conversion tests start from, small and with the package's dims."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from packages.convert import convert
from packages.convert_report import Report
from packages.qwen3_8_27b import PACKAGE
from reference import safetensors
from reference.bf16 import round_bf16
from reference.config import TINY, Config
from reference.synthetic import lively, write_checkpoint
from reference.weights import DictWeights, Weights, tensor
from tests import tiny, tiny_hybrid

# The twin with padding rows: ids 317 to 319 have no token.
KEY, TWIN = "qwen3_8_27b:padded", "padded"
DIMS = PACKAGE.dims[TWIN]
CONFIG = dataclasses.replace(TINY, max_positions=DIMS.n_context, n_vocab_real=DIMS.n_vocab_real)
TOKENIZER = tiny_hybrid.tokenizer_json(DIMS.n_vocab_real)
TEMPLATE = tiny.TEMPLATE
# No gain below it in magnitude, but for zero: 1 + w would lose bits.
SMALLEST_EXACT_GAIN = 2.0**-16


def bf16_weights(seed: int = 1, config: Config = CONFIG) -> Weights:
    """Random weights whose every number is a BF16 word, gains large enough for 1 + w."""
    found = lively(config, seed)
    arrays = {}
    for name in found.names():
        x = round_bf16(tensor(found, name))
        arrays[name] = np.where(np.abs(x) < SMALLEST_EXACT_GAIN, 0.0, x)
    return DictWeights(arrays)


def checkpoint(folder: Path, **options: Any) -> Path:
    """A whole checkpoint in three or more shards, with vision, MTP, tokenizer and template."""
    given = {
        "weights": bf16_weights(), "vision": True, "shard_bytes": 600_000,
        "tokenizer": TOKENIZER.encode(), **options,
    }
    write_checkpoint(folder, given.pop("weights"), CONFIG, **given)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def run(src: Path, dst: Path, recipe: str = "bf16", **options: Any) -> Report:
    """`convert` for the padded twin, without progress."""
    given = {"package": KEY, "progress": lambda done, total: None, **options}
    return convert(src, dst, recipe=recipe, **given)


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    """Rewrite a JSON file with a change made in place."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def edit_shard(path: Path, change: Callable[[dict[str, tuple[str, np.ndarray]]], None]) -> None:
    """Rewrite a safetensors file; `change` gets name -> (dtype, float64 array), and replaces."""
    file = safetensors.SafetensorsFile(path)
    tensors = {
        name: (entry.dtype, np.array(file.rows(name, 0, entry.shape[0])))
        for name, entry in file.entries.items()
    }
    del file
    change(tensors)
    rewrite(path, tensors)


def rewrite(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """Write float arrays as a safetensors file; NaN and infinity too."""
    safetensors.write(
        path, {name: (dtype, x.shape) for name, (dtype, x) in tensors.items()},
        lambda name: iter([safetensors.encode(tensors[name][1], tensors[name][0])]),
    )
