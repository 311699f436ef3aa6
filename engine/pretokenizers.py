"""Owns the table of pre-tokeniser rules: how text is cut into words before the merges apply.

A GGUF file names its rule in `tokenizer.ggml.pre` and carries nothing else of it, so each rule here
holds what the model's own tokenizer.json says under that name: patterns, normalisation, whether a
whole word found in the vocabulary skips the merges, and whether BOS is added by default. A name
that is not in the table is refused by the caller: a wrong rule shows in no later check.

Must not know vocabularies or ids. Sources and checks: KNOWLEDGE/findings/byte-level-bpe-rules.md.
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Combining marks belong to words here, and nowhere else in this table.
QWEN35_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SINGLE_DIGITS = r"\p{N}"


@dataclass(frozen=True)
class PreTokenizer:
    """One rule: `patterns` cut one after the other, each inside the pieces of the one before.

    `composes`: text is brought to NFC first. `ignores_merges`: a word that is a token is taken as
    it is. `adds_bos`: BOS goes in front where the file does not say.
    """

    patterns: tuple[str, ...]
    composes: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        """The patterns, then the byte alphabet in which the vocabulary is written."""
        splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
        byte_alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, byte_alphabet])


_GPT2 = PreTokenizer((GPT2_WORDS,))
_LLAMA3 = PreTokenizer((LLAMA3_WORDS,), ignores_merges=True, adds_bos=True)

PRE_TOKENIZERS = {
    "gpt2": _GPT2,
    "gpt-2": _GPT2,
    "smollm": PreTokenizer((SINGLE_DIGITS, GPT2_WORDS)),
    "qwen2": PreTokenizer((QWEN2_WORDS,), composes=True),
    "qwen35": PreTokenizer((QWEN35_WORDS,), composes=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
}
