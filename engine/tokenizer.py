"""Owns text to token ids and back, for one byte-level BPE vocabulary.

Encoding cuts out the special tokens, then hands the text between them to the Rust `tokenizers`
library. Decoding is a table look-up that never meets the library, so one id costs the same in any
vocabulary.

Must not know C, sessions or chat templates; must not print, fork or start threads. A Tokenizer
never changes after it is made, so any number of threads may use it at once. The metadata's checks
are in vocabulary.py. Where the reference runtime and the library differ, and which of them this
file follows: KNOWLEDGE/findings/byte-level-bpe-rules.md.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
from tokenizers import models

from engine.errors import InvalidArgument
from engine.vocabulary import (
    BYTE,
    BYTE_TEXTS,
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    read_vocabulary,
)

# A word pattern takes one step back for each character of a whitespace run, and the library dies at
# ten million steps: KNOWLEDGE/pitfalls/regex-step-limit-panics.md.
MAX_TEXT_CHARACTERS = 8 << 20

SPECIAL_TYPES = (UNKNOWN, CONTROL, USER_DEFINED)
END_NAMES = ("eos", "eot", "eom")
# Texts that end a generation in some family, whatever the file's own keys and types say of them.
END_TEXTS = (
    *("<|endoftext|>", "<|im_end|>", "<|end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"),
    *("<end_of_turn>", "<end_of_utterance>", "<｜end▁of▁sentence｜>", "</s>", "<eos>"),
    *("<EOT>", "_<EOT>"),
)
# Borders between files end one, too: the id that the file names, else the first of these texts.
BORDER_TEXTS = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each byte 0 to 255 in a byte-level vocabulary."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


BYTE_ALPHABET = _byte_alphabet()
# Latin-1 turns the values back into bytes; U+0100 makes it fail on what is not in the alphabet.
_TO_LATIN_1 = dict.fromkeys(range(256), 0x100) | {
    ord(char): byte for byte, char in enumerate(BYTE_ALPHABET)
}


class Tokenizer:
    """One vocabulary: `encode`, `decode`, and what each id means.

    `pieces` holds the bytes of every id and `eog_ids` the ids that end a generation. `bos_id` and
    `eos_id` are None, and their texts empty, where the file names none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        special_ids = vocabulary.special_ids
        ends_by_text = _ends_by_text(vocabulary)
        types = vocabulary.types.copy()
        for token_id in ends_by_text:
            # A model that prints its end as letters would never be seen to end.
            if types[token_id] not in SPECIAL_TYPES:
                types[token_id] = CONTROL
        self._model = _build_model(vocabulary)
        self._specials = _longest_first(vocabulary.tokens, types)
        self._front, self._back = (
            [special_ids[name]] if name in vocabulary.adds else [] for name in ("bos", "eos")
        )
        self.n_vocab = len(vocabulary.tokens)
        self.pieces = [_piece(*pair) for pair in zip(vocabulary.tokens, types, strict=True)]
        self.eog_ids: frozenset[int] = ends_by_text.union(
            special_ids[name] for name in (*END_NAMES, *BORDER_TEXTS) if name in special_ids
        )
        self.bos_id, self.eos_id = special_ids.get("bos"), special_ids.get("eos")
        self.bos_text, self.eos_text = (
            "" if token_id is None else vocabulary.tokens[token_id]
            for token_id in (self.bos_id, self.eos_id)
        )
        self.adds_bos = "bos" in vocabulary.adds

    @classmethod
    def from_metadata(cls, get: Callable[[str, Any], Any]) -> "Tokenizer":
        """The tokenizer that `get(key, default)` describes; ModelError names key, value, limit."""
        return cls(read_vocabulary(get))

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """The ids of `text`; a special token's text is always that token, never letters.

        `add_special` puts BOS in front and EOS behind where the vocabulary says so. Bytes that the
        vocabulary has no token for are dropped. InvalidArgument for text that UTF-8 cannot hold
        and for more than MAX_TEXT_CHARACTERS.
        """
        _check_text(text)
        ids = self._front.copy() if add_special else []
        for fragment in self._cut_specials(text):
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                found = self._model.encode(fragment, add_special_tokens=False).ids
                # Ids past the vocabulary stand for the bytes it lacks: see _build_model.
                ids.extend(token_id for token_id in found if token_id < self.n_vocab)
        return ids + self._back if add_special else ids

    def decode(self, ids: Sequence[int]) -> bytes:
        """The pieces of `ids`, joined; may end inside a character. InvalidArgument for a bad id."""
        # Checked first: a negative index would quietly take a piece from the end of the table.
        if len(ids) and not (min(ids) >= 0 and max(ids) < self.n_vocab):
            index, bad = next((i, t) for i, t in enumerate(ids) if not 0 <= t < self.n_vocab)
            raise InvalidArgument(
                f"token id {bad} at index {index} is outside the vocabulary, which has ids 0 to"
                f" {self.n_vocab - 1}"
            )
        return b"".join(map(self.pieces.__getitem__, ids))

    def is_eog(self, token_id: int) -> bool:
        """Whether `token_id` ends a generation; False for ids that are not in the vocabulary."""
        return token_id in self.eog_ids

    def _cut_specials(self, text: str) -> list[str | int]:
        """`text` as special ids and the non-empty texts between them, in order.

        The longest special is cut out everywhere before the next one is looked for; the library's
        own added tokens are not used because there the leftmost wins.
        """
        fragments: list[str | int] = [text] if text else []
        for special, token_id in self._specials:
            if special in text:
                fragments = [
                    part for fragment in fragments for part in _cut(fragment, special, token_id)
                ]
        return fragments


def _build_model(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The library's encoder of plain text.

    It gets an id past the vocabulary for each byte without a token: the library leaves unknown
    characters out *before* it merges, which would join what stood on their two sides.
    """
    ids = vocabulary.ids
    lacking = [char for char in BYTE_ALPHABET if char not in ids]
    stand_ins = {char: len(ids) + n for n, char in enumerate(lacking)}
    model = tokenizers.Tokenizer(
        models.BPE(
            vocab={**ids, **stand_ins},
            merges=vocabulary.merges,
            ignore_merges=vocabulary.rule.ignores_merges,
        )
    )
    if vocabulary.rule.composes:
        model.normalizer = tokenizers.normalizers.NFC()
    model.pre_tokenizer = vocabulary.rule.splitter()
    return model


def _ends_by_text(vocabulary: Vocabulary) -> frozenset[int]:
    """The ids that end a generation because of what they are called."""
    ids = vocabulary.ids
    ends = [ids[text] for text in END_TEXTS if text in ids]
    for name, texts in BORDER_TEXTS.items():
        if name not in vocabulary.special_ids:
            ends += [ids[text] for text in texts if text in ids][:1]
    return frozenset(ends)


def _longest_first(tokens: Sequence[str], types: Sequence[int]) -> list[tuple[str, int]]:
    specials = [(token, i) for i, token in enumerate(tokens) if types[i] in SPECIAL_TYPES]
    return sorted(specials, key=lambda special: len(special[0].encode()), reverse=True)


def _cut(fragment: str | int, special: str, token_id: int) -> list[str | int]:
    """`fragment` with `token_id` in place of every `special`; an id stays as it is."""
    if isinstance(fragment, int):
        return [fragment]
    parts: list[str | int] = []
    for text in fragment.split(special):
        parts += [text, token_id] if text else [token_id]
    return parts[:-1]


def _piece(token: str, kind: int) -> bytes:
    """The bytes that a token stands for; none for an unused one."""
    if kind == UNUSED:
        return b""
    if kind == BYTE:
        return bytes([BYTE_TEXTS[token]])
    if kind not in SPECIAL_TYPES:
        try:
            return token.translate(_TO_LATIN_1).encode("latin-1")
        except UnicodeEncodeError:
            # Not written in the byte alphabet, so it is text as it stands.
            pass
    return token.encode()


def _check_text(text: str) -> None:
    """InvalidArgument for a text that cannot be encoded."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidArgument(
            f"text has {len(text)} characters; at most {MAX_TEXT_CHARACTERS} are tokenized at once"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"text has an unpaired surrogate, U+{ord(text[error.start]):04X}, at character"
            f" {error.start}; UTF-8 cannot hold it"
        ) from None
