"""Owns the tiny hybrid model for tests: the Qwen3.8-27B twin written as .mspec from any weights.

The tokenizer is byte-level with the Qwen 3.5 rule. The twin `padded` has rows without a token.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from engine.artifacts.mspec_format import Origin
from engine.artifacts.mspec_writer import MspecWriter
from engine.artifacts.weight_codecs import encode_rows, layout_of
from engine.pretokenizers import QWEN35_WORDS
from packages.qwen3_8_27b import PACKAGE
from packages.qwen3_8_27b.bind import TEMPLATE_OBJECT, TOKENIZER_OBJECT, shapes
from packages.qwen3_8_27b.dims import HybridDims
from reference.weights import tensor
from tests import tiny

DIMS: HybridDims = PACKAGE.dims["tiny"]
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
ORIGIN = Origin("tiny hybrid", "test", "0" * 64)


def tokenizer_json(n_tokens: int) -> str:
    """A tokenizer.json with exactly `n_tokens` ids."""
    alphabet = tiny.byte_alphabet()
    pairs = [("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("o", "n"), ("a", "n")]
    tokens = [*alphabet, *(left + right for left, right in pairs)]
    names = [*SPECIALS, *(f"<|filler_{i}|>" for i in range(n_tokens))]
    added = [
        {"id": len(tokens) + i, "content": name, "special": "think" not in name}
        for i, name in enumerate(names[: n_tokens - len(tokens)])
    ]
    split = {"type": "Split", "pattern": {"Regex": QWEN35_WORDS}, "behavior": "Isolated"}
    return json.dumps({
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]},
        "model": {
            "type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(pair) for pair in pairs],
        },
        "added_tokens": added,
    })


def write(path: Path, weights: Any, dims: HybridDims = DIMS, dtype: str = "f32") -> Path:
    """Write a .mspec from `reference` weights, all tensors in one format."""
    with MspecWriter(path, ORIGIN, "tests") as writer:
        for name, shape in shapes(dims).items():
            values = np.asarray(tensor(weights, name), np.float32).reshape(shape)
            blocks = encode_rows(dtype, shape, [values], name)
            writer.write(name, "tensor", dtype, shape, layout_of(dtype), blocks)
        writer.write_text(TOKENIZER_OBJECT, tokenizer_json(dims.n_vocab_real))
        writer.write_text(TEMPLATE_OBJECT, tiny.TEMPLATE)
        writer.finish()
    return path
