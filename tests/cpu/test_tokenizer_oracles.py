"""Owns the proof that ids equal those of two other programs: llama.cpp, and `tokenizers` itself.

llama.cpp answers through its own server on loopback, which `xllamacpp` starts in this process. The
library answers from tokenizer.json files written out here, with patterns copied from the published
ones and not from the engine. Where the two disagree (NFC), tokenizer.json is right.
"""

import json
import unicodedata
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from engine.artifacts.gguf import open_gguf
from engine.tokenizer import Tokenizer
from tests.cpu import tokenizer_cases as cases

SECONDS = 30
SMOLLM2_SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<reponame>")
FIELD_TEXTS = (
    *("x 🦙 ñ 漢字 e\u0301", "नमस्ते दुनिया", "สวัสดีครับ", "cafe\u0301 e\u0301", "a->b", "f(x):\n"),
    *("(x):\n\n  y", "->", "  \n \n  x", "<tool>x</tool> <tool><|im_end|>\n", "It'S 'll 'LL", ""),
)
QWEN_TAIL = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PUBLISHED = {
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+"
        + QWEN_TAIL
    ),
    "qwen35": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+" + QWEN_TAIL
    ),
}


class Llama:
    """llama.cpp with one model, asked over HTTP."""

    def __init__(self, path: Path) -> None:
        xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp is the judge here")
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = 64
        params.n_parallel = 1
        params.cpuparams.n_threads = 1
        params.warmup = False
        params.verbosity = 0
        self.server = xllamacpp.Server(params)

    def ask(self, path: str, question: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.server.listening_address + path,
            json.dumps(question).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def encode(self, text: str) -> list[int]:
        question = {"content": text, "add_special": True, "parse_special": True}
        tokens: list[int] = self.ask("/tokenize", question)["tokens"]
        return tokens

    def decode(self, ids: list[int]) -> str:
        text: str = self.ask("/detokenize", {"tokens": ids})["content"]
        return text


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    with open_gguf(smollm2_path) as file:
        return Tokenizer.from_metadata(file.get)


@pytest.fixture(scope="module")
def llama(smollm2_path: Path) -> Llama:
    return Llama(smollm2_path)


def test_two_thousand_mixed_texts_as_llama_has_them(smollm2: Tokenizer, llama: Llama) -> None:
    texts = [*FIELD_TEXTS, *cases.mixed_texts(2026, 2000, SMOLLM2_SPECIALS)]
    for text in texts:
        ids = smollm2.encode(text, add_special=True)
        assert ids == llama.encode(text), repr(text)[:300]


def test_text_comes_back_as_llama_gives_it(smollm2: Tokenizer, llama: Llama) -> None:
    for text in cases.mixed_texts(11, 200, SMOLLM2_SPECIALS):
        ids = smollm2.encode(text, add_special=False)
        assert smollm2.decode(ids).decode() == llama.decode(ids)


def test_every_special_piece_as_llama_gives_it(smollm2: Tokenizer, llama: Llama) -> None:
    for token_id in range(17):
        assert smollm2.decode([token_id]).decode() == llama.decode([token_id])


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "qwen35", "llama-bpe"])
def test_every_rule_as_llama_has_it(pre: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, pre)
    judge = Llama(path)
    with open_gguf(path) as file:
        tokenizer = Tokenizer.from_metadata(file.get)
    for text in (*FIELD_TEXTS, *cases.mixed_texts(35, 300, list(cases.SPECIALS))):
        # llama.cpp never composes characters, the qwen rules do: see the next tests.
        composed = unicodedata.normalize("NFC", text)
        ids = tokenizer.encode(composed, add_special=True)
        assert ids == judge.encode(composed), repr(composed)[:300]


def write_tiny_model(path: Path, pre: str) -> None:
    """A llama of one layer with the small vocabulary; its weights are never used."""
    gguf = pytest.importorskip("gguf", reason="writes the judge's model")
    keys = cases.metadata(pre)
    width = 32
    n_vocab = len(keys[cases.PREFIX + "tokens"])
    writer = gguf.GGUFWriter(path, "llama")
    for name in ("embedding_length", "feed_forward_length", "context_length"):
        writer.add_uint32(f"llama.{name}", width)
    writer.add_uint32("llama.block_count", 1)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in keys.items():
        add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}
        add[type(value)](key, value)
    shapes = dict.fromkeys(("token_embd", "output"), (n_vocab, width))
    shapes |= dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), (width,))
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes |= dict.fromkeys((f"blk.0.{part}" for part in parts), (width, width))
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def published(pre: str) -> tokenizers.Tokenizer:
    """`tokenizers` loaded from the tokenizer.json that goes with the small vocabulary."""
    keys = cases.metadata(pre)
    tokens: list[str] = keys[cases.PREFIX + "tokens"]
    specials = [t for t, kind in cases.SPECIALS.items() if kind != cases.UNUSED]
    split = {"type": "Split", "pattern": {"Regex": PUBLISHED[pre]}, "behavior": "Isolated"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return tokenizers.Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [
                    {"id": tokens.index(token), "content": token, "special": True}
                    | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
                    for token in specials
                ],
                "normalizer": {"type": "NFC"},
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [split | {"invert": False}, byte_level | {"use_regex": False}],
                },
                "decoder": byte_level | {"use_regex": False},
                "model": {
                    "type": "BPE",
                    "vocab": {token: token_id for token_id, token in enumerate(tokens)},
                    "merges": [merge.split(" ") for merge in keys[cases.PREFIX + "merges"]],
                },
            }
        )
    )


@pytest.mark.parametrize("pre", list(PUBLISHED))
def test_the_qwen_rules_as_tokenizer_json_has_them(pre: str) -> None:
    judge, tokenizer = published(pre), cases.tokenizer(pre)
    for text in (*FIELD_TEXTS, *cases.mixed_texts(2, 500, list(cases.SPECIALS))):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == judge.encode(text).ids, repr(text)[:300]


@pytest.mark.parametrize("text", ["नमस्ते", " हिन्दी", "สวัสดีครับ"])
def test_marks_belong_to_words_under_qwen35_only(text: str) -> None:
    newer = cases.tokenizer("qwen35").encode(text, add_special=False)
    older = cases.tokenizer("qwen2").encode(text, add_special=False)
    assert len(newer) == 1
    assert len(older) > 1


@pytest.mark.parametrize("pre", list(PUBLISHED))
def test_decomposed_latin_is_composed_outside_specials(pre: str) -> None:
    tokenizer = cases.tokenizer(pre)
    ids = tokenizer.encode(" cafe\u0301<|im_end|>", add_special=False)
    assert tokenizer.decode(ids) == " caf\u00e9<|im_end|>".encode()
    assert len(ids) == 2
