"""Owns the proof that llama.cpp loads what the writer writes and computes with it."""

from pathlib import Path

import numpy as np
import pytest

from engine.artifacts import ggml_types as ggml
from engine.artifacts.gguf import GgufFile, open_gguf
from engine.artifacts.gguf_types import GgufValue, ValueType
from engine.artifacts.gguf_writer import Pair, TensorSource, to_float32_gguf, write_gguf
from engine.artifacts.slices import SlicePlan, write_from_parts, write_slice

D_MODEL, D_FF, D_HEAD, N_LAYERS = 64, 96, 32, 2


def tiny_pairs(real: GgufFile) -> list[Pair]:
    """The real model's metadata and tokenizer with tiny dimensions."""
    changed = {
        "llama.block_count": N_LAYERS,
        "llama.embedding_length": D_MODEL,
        "llama.feed_forward_length": D_FF,
        "llama.attention.head_count": D_MODEL // D_HEAD,
        "llama.attention.head_count_kv": 1,
        "llama.rope.dimension_count": D_HEAD,
    }
    made = {key: GgufValue.of(ValueType.UINT32, n) for key, n in changed.items()}
    return [(key, made.get(key, value)) for key, value in real.metadata.items()]


def tiny_tensors(n_vocab: int) -> list[TensorSource]:
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (n_vocab, D_MODEL), "output_norm": (D_MODEL,)}
    for i in range(N_LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm": (D_MODEL,), f"blk.{i}.ffn_norm": (D_MODEL,),
            f"blk.{i}.attn_q": (D_MODEL, D_MODEL), f"blk.{i}.attn_k": (D_HEAD, D_MODEL),
            f"blk.{i}.attn_v": (D_HEAD, D_MODEL), f"blk.{i}.attn_output": (D_MODEL, D_MODEL),
            f"blk.{i}.ffn_gate": (D_FF, D_MODEL), f"blk.{i}.ffn_up": (D_FF, D_MODEL),
            f"blk.{i}.ffn_down": (D_MODEL, D_FF),
        }  # fmt: skip
    made = []
    for name, shape in shapes.items():
        x = rng.standard_normal(shape).astype(np.float32)
        kind = ggml.F16 if len(shape) == 2 else ggml.F32
        made.append(TensorSource.from_array(f"{name}.weight", x, kind))
    return made


def completion(path: Path) -> str:
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp is llama.cpp in a wheel")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 256
    params.cpuparams.n_threads = 2
    params.warmup = False
    server = xllamacpp.Server(params)
    asked = {"prompt": "The capital of France", "n_predict": 8, "temperature": 0, "seed": 1}
    return str(server.handle_completions(asked)["choices"][0]["text"])


def test_llama_cpp_computes_the_same_from_every_form(smollm2_path: Path, tmp_path: Path) -> None:
    """A model, its float32 copy, and the model joined from two slices give the same text."""
    tiny, wide, joined = tmp_path / "tiny", tmp_path / "f32", tmp_path / "joined"
    with open_gguf(smollm2_path) as real:
        n_vocab = len(real.get("tokenizer.ggml.tokens"))
        write_gguf(tiny, tiny_pairs(real), tiny_tensors(n_vocab))
    plan = SlicePlan()
    plan.add_layer_range(0, 0, 1, True, False)
    plan.add_layer_range(1, 1, 2, False, True)
    with open_gguf(tiny) as file:
        to_float32_gguf(file, wide)
        for stage in (0, 1):
            write_slice(file, plan, stage, tmp_path / f"slice{stage}")
    write_from_parts([tmp_path / "slice0", tmp_path / "slice1"], joined)
    expected = completion(tiny)
    assert expected
    assert completion(joined) == expected
    assert completion(wide)
