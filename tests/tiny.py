"""Owns a tiny model for tests: the SmolLM2 package's twin with random weights, written as GGUF.

Byte-level vocabulary of 320: 256 bytes, a few merges, the chat specials. `serve` adds its identity
to a table that MESH_SPECIALIZE_SERVES names, which is how an operator would serve it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from engine.artifacts.content_digest import content_digest, tensor_digests
from engine.artifacts.gguf import open_gguf
from engine.artifacts.gguf_types import GgufValue, ValueType
from engine.artifacts.gguf_writer import TensorSource, write_gguf
from packages.smollm2_135m import PACKAGE
from packages.smollm2_135m.bind import KEYS, shapes
from packages.smollm2_135m.dims import DenseDims
from packages.tensor_table import table_text

DIMS = PACKAGE.dims["tiny"]
F32 = 0
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NORMAL, CONTROL = 1, 3
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n'"
    " + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
Change = Callable[[str, np.ndarray], np.ndarray]


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(hidden)) for b in range(256)]


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types, and merges."""
    alphabet = byte_alphabet()
    space = alphabet[32]
    pairs = [("t", "h"), ("th", "e"), (space, "the"), ("i", "n"), ("e", "r"), (space, "a"),
             ("o", "n"), ("a", "n"), ("r", "e"), ("an", "d")]
    tokens = [*alphabet, *SPECIALS, *(left + right for left, right in pairs)]
    fillers = [f"<|filler_{i}|>" for i in range(DIMS.n_vocab - len(tokens))]
    types = [NORMAL] * 256 + [CONTROL] * 3 + [NORMAL] * len(pairs) + [CONTROL] * len(fillers)
    return [*tokens, *fillers], types, [f"{left} {right}" for left, right in pairs]


def metadata(dims: DenseDims = DIMS, template: str = TEMPLATE) -> list[tuple[str, GgufValue]]:
    """All metadata of the file."""
    tokens, types, merges = vocabulary()
    of, array = GgufValue.of, GgufValue.array
    strings = {
        "general.architecture": "llama", "general.name": "tiny twin",
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.chat_template": template,
    }
    pairs = [(key, of(ValueType.STRING, text)) for key, text in strings.items()]
    for field, key in KEYS.items():
        value = getattr(dims, field)
        kind = ValueType.FLOAT32 if isinstance(value, float) else ValueType.UINT32
        pairs.append((key, of(kind, value)))
    ids = {"bos": 1, "eos": 2, "unknown": 0, "padding": 2}
    pairs += [
        (f"tokenizer.ggml.{name}_token_id", of(ValueType.UINT32, 256 + value))
        for name, value in ids.items()
    ]
    return [
        *pairs,
        ("tokenizer.ggml.add_bos_token", of(ValueType.BOOL, False)),
        ("tokenizer.ggml.tokens", array(ValueType.STRING, tokens)),
        ("tokenizer.ggml.token_type", array(ValueType.INT32, types)),
        ("tokenizer.ggml.merges", array(ValueType.STRING, merges)),
    ]


def weights(seed: int, dims: DenseDims = DIMS) -> Mapping[str, np.ndarray]:
    """Random float32 weights that keep activations in range."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes(dims).items():
        if name.endswith("norm.weight"):
            made[name] = (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
        else:
            # A small embedding lets the layers decide, so that greedy text is not one token.
            scale = 0.1 if name.startswith("token_embd") else 1.0
            made[name] = (scale * rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(
                np.float32
            )
    return made


def write(
    path: Path, seed: int = 0, change: Change = lambda name, values: values,
    template: str = TEMPLATE,
) -> Path:
    """Write a tiny model; `change` may replace any tensor's values."""
    sources = []
    for name, values in weights(seed).items():
        raw = np.ascontiguousarray(change(name, values)).tobytes()
        sources.append(TensorSource(name, values.shape[::-1], F32, len(raw), (raw,)))
    write_gguf(path, metadata(template=template), sources)
    return path


def serve(table: Path, *models: Path) -> Path:
    """Write the operator's table that serves these files."""
    rows = []
    for model in models:
        with open_gguf(model) as file:
            digest = content_digest(file)
        rows.append(
            f'[[artifact]]\npackage = "smollm2_135m:tiny"\ncontent_sha256 = "{digest}"\n'
        )
    table.write_text("\n".join(rows))
    return table


def serve_parts(table: Path, model: Path) -> None:
    """Add a file to the operator's table, with its tensors: parts of it are served too."""
    name = f"{model.stem}.tensors.toml"
    with open_gguf(model) as file:
        table.with_name(name).write_text(table_text(tensor_digests(file)))
        row = (
            f'\n[[artifact]]\npackage = "smollm2_135m:tiny"\ntensors = "{name}"\n'
            f'content_sha256 = "{content_digest(file)}"\n'
        )
    table.write_text(table.read_text() + row)
