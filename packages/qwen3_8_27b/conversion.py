"""Owns what this package tells the converter: its dims by twin, its inventory, its sources' words."""

import tomllib
from dataclasses import fields
from functools import partial
from pathlib import Path

from engine.artifacts.gguf import GgufFile
from packages.qwen3_8_27b import gguf_names, stated
from packages.qwen3_8_27b.dims import HybridDims
from packages.qwen3_8_27b.inventory import inventory, left_out, text_name
from packages.sources import Convertible, SourceTensor

KEY = "qwen3_8_27b"


def twins() -> dict[str, HybridDims]:
    """Dims by twin; "" is the model itself."""
    table = _table()
    changes = {"": {}, **table["twin"]}
    return {name: _dims({**table["dims"], **changed}) for name, changed in changes.items()}


def convertible(twin: str) -> Convertible:
    """What the converter needs for a twin that exists."""
    dims = twins()[twin]
    suffix = f":{twin}" if twin else ""
    key = KEY + suffix
    return Convertible(
        key=key,
        model_id=_table()["model_id"] + suffix,
        is_twin=bool(twin),
        n_ids=dims.n_vocab_real,
        dims=dims,
        inventory=inventory(dims),
        text_name=text_name,
        left_out=left_out,
        check_config=lambda document, what: stated.check_config(document, dims, key, what),
        check_gguf=lambda file: stated.check_gguf(file, dims, key),
        upstream_tensors=partial(_upstream_tensors, dims=dims),
    )


def _upstream_tensors(
    file: GgufFile, dims: HybridDims
) -> tuple[dict[str, SourceTensor], dict[str, int]]:
    return gguf_names.upstream_tensors(file, dims, stated.n_draft_layers(file))


def _table() -> dict:  # type: ignore[type-arg]
    return tomllib.loads((Path(__file__).parent / "package.toml").read_text())


def _dims(table: dict) -> HybridDims:  # type: ignore[type-arg]
    return HybridDims(**{field.name: table[field.name] for field in fields(HybridDims)})
