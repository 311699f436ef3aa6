"""Owns the tokenizer.json of a GGUF file: the same vocabulary, merges and rule in upstream's form.

The way back from `engine/tokenizer_json.py`, for vocabularies that `engine/vocabulary.py` accepts.
Unused ids get no entry, so padding rows of the embedding stay without tokens.
"""

import json
from typing import Any

from engine.artifacts.gguf import GgufFile
from engine.errors import ModelError
from engine.pretokenizers import PreTokenizer
from engine.vocabulary import BYTE, CONTROL, NORMAL, UNUSED, read_vocabulary

_ADDED_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def tokenizer_json(file: GgufFile) -> str:
    """The tokenizer.json of the file's metadata; ModelError names key, value and limit."""
    vocabulary = read_vocabulary(file.get)
    rows = list(zip(vocabulary.tokens, vocabulary.types, strict=True))
    if any(kind == BYTE for _, kind in rows):
        raise ModelError(f"{file.shown}: byte tokens in a byte-level vocabulary")
    document = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": text, "special": kind == CONTROL, **_ADDED_FLAGS}
            for i, (text, kind) in enumerate(rows) if kind not in (NORMAL, UNUSED)
        ],
        "normalizer": {"type": "NFC"} if vocabulary.rule.composes else None,
        "pre_tokenizer": _pre_tokenizer(vocabulary.rule),
        "decoder": _byte_level(),
        "model": {
            "type": "BPE",
            "ignore_merges": vocabulary.rule.ignores_merges,
            "vocab": {text: i for i, (text, kind) in enumerate(rows) if kind == NORMAL},
            "merges": [list(pair) for pair in vocabulary.merges],
        },
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _pre_tokenizer(rule: PreTokenizer) -> dict[str, Any]:
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in rule.patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, _byte_level()]}


def _byte_level() -> dict[str, Any]:
    return {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False,
    }
