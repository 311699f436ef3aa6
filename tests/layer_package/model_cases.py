"""Owns makers of tiny models as GGUF files, single or in shards, for tests of layer packages.

Packs bytes with `struct` alone (`tests/cpu/gguf_cases.py`), on purpose without the project's reader
and writer. Deterministic: the same arguments give the same bytes.
"""

import math
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine.artifacts.ggml_types import GGML_TYPES
from tests.cpu.gguf_cases import ARRAY, STRING, UINT32, array, pair, tensor, text, u32, u64

ARCHITECTURE = "llama"
D_MODEL = 64
N_VOCAB = 48
F32, F16, Q8_0 = 0, 1, 8
INT32 = 5


class Pair(NamedTuple):
    """A metadata pair: its key and the whole record as a file holds it."""

    key: str
    record: bytes


class Tensor(NamedTuple):
    """A tensor: `dims` innermost first, and its unpadded data."""

    name: str
    dims: tuple[int, ...]
    ggml_type: int
    data: bytes


class Model(NamedTuple):
    """What a GGUF file holds."""

    pairs: list[Pair]
    tensors: list[Tensor]
    alignment: int


def tiny_model(
    *,
    tied: bool = False,
    n_layers: int = 3,
    mtp: bool = False,
    mtp_embedding: bool = False,
    rope_table: bool = False,
    per_layer_table: bool = False,
    alignment: int = 32,
    every_type: bool = False,
    extra_pairs: Sequence[Pair] = (),
    extra_tensors: Sequence[Tensor] = (),
) -> Model:
    """A model of `n_layers` blocks in all; with `mtp` the last of them is the prediction block
    (without its own embedding, unless asked); `every_type` adds one tensor of each ggml type."""
    a = ARCHITECTURE
    pairs = [
        string("general.architecture", a),
        string("general.name", "Tiny Demo"),
        *([number("general.alignment", alignment)] if alignment != 32 else []),
        number(f"{a}.block_count", n_layers),
        number(f"{a}.context_length", 128),
        number(f"{a}.embedding_length", D_MODEL),
        *([number(f"{a}.nextn_predict_layers", 1)] if mtp else []),
        string("general.description", ""),
        Pair("tokenizer.ggml.tokens", pair(b"tokenizer.ggml.tokens", ARRAY, array(
            STRING, N_VOCAB, b"".join(text(b"t%d" % i) for i in range(N_VOCAB))))),
        Pair("tokenizer.ggml.merges", pair(b"tokenizer.ggml.merges", ARRAY, array(STRING, 0))),
        *extra_pairs,
    ]
    tensors = [made("token_embd.weight", (D_MODEL, N_VOCAB), Q8_0)]
    if per_layer_table:
        tensors.append(made("per_layer_token_embd.weight", (32, N_VOCAB), Q8_0))
    if rope_table:
        tensors.append(made("rope_freqs.weight", (16,)))
    for layer in range(n_layers):
        tensors += _block(layer, prediction=mtp and layer == n_layers - 1,
                          own_embedding=mtp_embedding, per_layer=per_layer_table)
    tensors.append(made("output_norm.weight", (D_MODEL,)))
    if not tied:
        tensors.append(made("output.weight", (D_MODEL, N_VOCAB), Q8_0))
    if every_type:
        tensors += [made(f"blk.0.type_{n}.weight", (kind.block_elements, 3), n)
                    for n, kind in GGML_TYPES.items()]  # fmt: skip
    return Model(pairs, [*tensors, *extra_tensors], alignment)


def _block(layer: int, *, prediction: bool, own_embedding: bool, per_layer: bool) -> list[Tensor]:
    stem = f"blk.{layer}."
    tensors = [
        made(f"{stem}attn_norm.weight", (D_MODEL,)),
        made(f"{stem}attn_q.weight", (D_MODEL, D_MODEL), Q8_0),
        made(f"{stem}ffn_up.weight", (D_MODEL, 32), F16),
        # 20 bytes: not a multiple of any alignment, so that padding is there
        made(f"{stem}ffn_bias.weight", (5,)),
    ]
    if per_layer:
        tensors.append(made(f"{stem}per_layer_proj.weight", (32, 2)))
    if prediction:
        names = ["eh_proj", "enorm", "hnorm", *(["embed_tokens"] if own_embedding else [])]
        tensors += [made(f"{stem}nextn.{name}.weight", (D_MODEL,)) for name in names]
    return tensors


def made(name: str, dims: tuple[int, ...], ggml_type: int = F32) -> Tensor:
    """A tensor with data drawn from its own name."""
    kind = GGML_TYPES[ggml_type]
    n_bytes = math.prod(dims) // kind.block_elements * kind.block_bytes
    return Tensor(name, dims, ggml_type, random.Random(name).randbytes(n_bytes))


def number(key: str, value: int, kind: int = UINT32) -> Pair:
    """A pair with a 32-bit number."""
    return Pair(key, pair(key.encode(), kind, struct.pack("<i" if kind == INT32 else "<I", value)))


def string(key: str, value: str) -> Pair:
    """A pair with text."""
    return Pair(key, pair(key.encode(), STRING, text(value.encode())))


def gguf_bytes(
    pairs: Sequence[Pair], tensors: Sequence[Tensor], alignment: int = 32, *, version: int = 3
) -> bytes:
    """A GGUF file with these in order: header, padding, every tensor padded."""
    head = b"GGUF" + u32(version) + u64(len(tensors)) + u64(len(pairs))
    head += b"".join(p.record for p in pairs)
    offset = 0
    for t in tensors:
        head += tensor(t.name.encode(), t.dims, t.ggml_type, offset)
        offset += len(t.data) + -len(t.data) % alignment
    return b"".join(
        [head, bytes(-len(head) % alignment)]
        + [t.data + bytes(-len(t.data) % alignment) for t in tensors]
    )


def source_gguf(path: Path, **kinds: Any) -> Path:
    """Write the model of `tiny_model` (same arguments) as one file; its path."""
    model = tiny_model(**kinds)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf_bytes(*model))
    return path


def source_shards(folder: Path, n_shards: int = 3, *, stem: str = "TinyDemo-Q8_0",
                  empty_first: bool = True, **kinds: Any) -> list[Path]:  # fmt: skip
    """Write the model as a complete shard set; the first shard holds no tensors unless told."""
    model = tiny_model(**kinds)
    n_full = n_shards - 1 if empty_first else n_shards
    per_shard = -(-len(model.tensors) // n_full)
    groups = [model.tensors[i * per_shard : (i + 1) * per_shard] for i in range(n_full)]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for no, tensors in enumerate([[], *groups] if empty_first else groups):
        split = [
            Pair("split.no", pair(b"split.no", 2, struct.pack("<H", no))),
            Pair("split.count", pair(b"split.count", 2, struct.pack("<H", n_shards))),
            number("split.tensors.count", len(model.tensors), INT32),
        ]
        aligned = [p for p in model.pairs if p.key == "general.alignment"]
        own = model.pairs if no == 0 else aligned
        path = folder / f"{stem}-{no + 1:05d}-of-{n_shards:05d}.gguf"
        path.write_bytes(gguf_bytes([*own, *split], tensors, model.alignment))
        paths.append(path)
    return paths


def projector_gguf(path: Path) -> Path:
    """Write a small vision tower; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pairs = [string("general.architecture", "clip"), string("general.type", "mmproj")]
    path.write_bytes(gguf_bytes(pairs, [made("v.patch_embd.weight", (8, 4))]))
    return path
