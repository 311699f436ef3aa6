"""Owns writing a model of random weights as a .mspec, so that it is opened like a real one.

    python -m packages.synthetic_file OUT.mspec --package qwen3_8_27b --recipe groupwise-int

Tensors are made and encoded by the device, one after the other, and are the numbers of
`synthetic.py`. Its text is byte-level with ChatML around it: every text goes through, and means
nothing. Beside the file goes a table for MESH_SPECIALIZE_SERVES with which it is served. Only
packages whose artifacts are .mspec files have one.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from engine.artifacts.mspec_format import DType, Kind, Origin, layout_of, object_bytes
from engine.artifacts.mspec_writer import MspecWriter
from engine.compiled.weights import encode_groups, float32_pieces
from engine.devices import DEVICE_NAMES, find
from engine.errors import EngineError, InvalidArgument
from engine.pretokenizers import QWEN35_WORDS
from engine.records import Weight
from engine.tokenizer import BYTE_ALPHABET
from packages.progress_bar import Bar
from packages.recipes import Recipe, recipe_named
from packages.synthetic import synthetic_plan
from ptx.device import Device
from ptx.encode_bf16.op import OP as ENCODE_BF16
from ptx.numerics import Array

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n'"
    " + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
GROUP = 128


def tokenizer_json(n_tokens: int) -> str:
    """A byte-level tokenizer with exactly `n_tokens` ids, those behind the bytes special."""
    names = [*SPECIALS, *(f"<|filler_{i}|>" for i in range(n_tokens))]
    added = [
        {"id": len(BYTE_ALPHABET) + i, "content": name, "special": True}
        for i, name in enumerate(names[: n_tokens - len(BYTE_ALPHABET)])
    ]
    split = {"type": "Split", "pattern": {"Regex": QWEN35_WORDS}, "behavior": "Isolated"}
    return json.dumps({
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]},
        "model": {
            "type": "BPE", "vocab": {token: i for i, token in enumerate(BYTE_ALPHABET)},
            "merges": [],
        },
        "added_tokens": added,
    })  # fmt: skip


def stored_pieces(device: Device, name: str, weight: Weight, dtype: DType) -> Iterator[Array]:
    """A weight's data as a .mspec has it, made on the device."""
    if dtype in (DType.INT4, DType.INT8):
        n_rows, width = weight.shape
        form, cell, per_byte = (
            ("int4_tiles", "u8", 2) if dtype == DType.INT4 else ("int8_tiles", "i8", 1)
        )
        codes = device.allocate((n_rows, width // per_byte), cell, f"codes of {name}")
        scales = device.allocate((n_rows, width // GROUP), "bf16", f"scales of {name}")
        encode_groups(device, name, weight, form, codes, scales)
        yield device.download(codes)
        yield device.download(scales)
        return
    for _, _, piece in float32_pieces(device, name, weight):
        if dtype == DType.F32:
            yield device.download(piece)
        else:
            words = device.allocate(piece.shape, "bf16", f"words of {name}")
            device.launch(ENCODE_BF16, x=piece, y=words)
            yield device.download(words)


def write(
    path: Path, key: str, recipe: Recipe, device: Device, seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> str:
    """Write the file and `<path>.serves.toml`; the weights' id.

    InvalidArgument for an unknown package, twin or recipe, and for one that is no .mspec;
    IoFailure. `progress` is told the bytes of tensors that are done, and of all.
    """
    name, _, twin = key.partition(":")
    plan = synthetic_plan(key, seed, recipe.name)
    package = importlib.import_module(f"packages.{name}").PACKAGE
    if package.container != "mspec":
        raise InvalidArgument(f"package {name}: its artifacts are {package.container} files")
    bind = importlib.import_module(f"packages.{name}.bind")
    roles = importlib.import_module(f"packages.{name}.inventory").inventory(package.dims[twin])
    origin = Origin(package.artifact(twin, None, "0" * 64).identity.model_id, recipe.name,
                    recipe.sha256(package.key))
    dtypes = {
        tensor: recipe.format_of(roles[tensor].role, roles[tensor].shape).dtype
        for tensor in plan.weights
    }
    n_bytes = sum(
        object_bytes(Kind.TENSOR, dtype, plan.weights[tensor].shape, layout_of(dtype))
        for tensor, dtype in dtypes.items()
    )
    with MspecWriter(path, origin, f"synthetic {key} {recipe.name} {seed}") as writer:
        for tensor, weight in plan.weights.items():
            if tensor in writer.done:
                continue
            dtype = dtypes[tensor]
            pieces = stored_pieces(device, tensor, weight, dtype)
            writer.write(tensor, Kind.TENSOR, dtype, weight.shape, layout_of(dtype), pieces)
            progress(writer.n_bytes, n_bytes)
        for text_name, text in (
            (bind.TOKENIZER_OBJECT, tokenizer_json(plan.n_vocab)), (bind.TEMPLATE_OBJECT, TEMPLATE)
        ):  # fmt: skip
            if text_name not in writer.done:
                writer.write_text(text_name, text)
        weights_id = writer.finish()
    path.with_name(f"{path.name}.serves.toml").write_text(
        f'[[artifact]]\npackage = "{key}"\ncontent_sha256 = "{weights_id}"\n', encoding="utf-8"
    )
    return weights_id


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 with one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="packages.synthetic_file", description="Write a model of random weights."
    )
    parser.add_argument("out", type=Path, metavar="OUT.mspec")
    parser.add_argument("--package", default="qwen3_8_27b")
    parser.add_argument("--recipe", default="groupwise-int")
    parser.add_argument("--device", choices=sorted(DEVICE_NAMES), default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        device = find(DEVICE_NAMES[options.device]).device
        recipe = recipe_named(options.recipe)
        with Bar() as bar:
            weights_id = write(
                options.out, options.package, recipe, device, options.seed, bar.show
            )
    except (EngineError, OSError) as error:
        print(f"synthetic_file: {error}", file=sys.stderr)
        return 1
    n_bytes, seconds = options.out.stat().st_size, time.perf_counter() - started
    print(f"{weights_id} {n_bytes} bytes in {seconds:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
