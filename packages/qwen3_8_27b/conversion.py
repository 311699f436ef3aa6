"""Owns what this package tells the converter: dims by twin, inventory, what a source must state."""

from collections.abc import Mapping
from functools import partial

from engine.artifacts.gguf import GgufFile
from packages.qwen3_8_27b import PACKAGE, gguf_names, stated
from packages.qwen3_8_27b.dims import HybridDims
from packages.qwen3_8_27b.inventory import inventory, left_out, text_name
from packages.sources import Convertible, SourceTensor


def twins() -> Mapping[str, HybridDims]:
    """Dims by twin; "" is the model itself."""
    return PACKAGE.dims


def convertible(twin: str) -> Convertible:
    """What the converter needs for a twin that exists."""
    dims = twins()[twin]
    suffix = f":{twin}" if twin else ""
    key = PACKAGE.key + suffix
    return Convertible(
        key=key,
        model_id=PACKAGE.model_id + suffix,
        is_twin=bool(twin),
        n_ids=dims.n_vocab_real,
        dims=dims,
        inventory=inventory(dims),
        text_name=text_name,
        left_out=left_out,
        check_config=partial(stated.check_config, dims=dims, key=key),
        check_gguf=partial(stated.check_gguf, dims=dims, key=key),
        upstream_tensors=partial(_upstream_tensors, dims=dims),
    )


def _upstream_tensors(
    file: GgufFile, dims: HybridDims
) -> tuple[dict[str, SourceTensor], dict[str, int]]:
    return gguf_names.upstream_tensors(file, dims, stated.n_draft_layers(file))
