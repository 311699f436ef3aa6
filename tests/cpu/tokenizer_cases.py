"""Owns what the tokenizer tests share: a tiny byte-level vocabulary, and mixed texts from a seed.

The byte alphabet is spelt out here again, on purpose not taken from the engine.
"""

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from engine.tokenizer import Tokenizer

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
ALPHABET = {byte: chr(byte) for byte in PRINTABLE} | {
    byte: chr(256 + place) for place, byte in enumerate(OTHERS)
}
SPECIALS = {
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    "<tool>": USER_DEFINED,
    "<tool>x</tool>": USER_DEFINED,
    "<unk>": UNKNOWN,
    "[PAD7]": UNUSED,
}
# Words of several scripts, each merged from its first byte on until it is one token.
WORDS = (
    *(" the", " hello", "'s", "ing", "12", "!!", "\n\n", "  ", "    ", "->", " (", "):\n", "):"),
    *("नमस्ते", " हिन्दी", "สวัสดีครับ", " caf\u00e9", "e\u0301", "漢字", "🦙", " ñ"),
)


def written(text: str) -> str:
    """`text` in the byte alphabet."""
    return "".join(ALPHABET[byte] for byte in text.encode())


def learnt(words: Sequence[str]) -> list[tuple[str, str]]:
    """Merges that make each word one token, found from left to right, word after word."""
    merges: list[tuple[str, str]] = []
    for word in words:
        symbols = list(written(word))
        for pair in merges:
            symbols = joined(symbols, pair)
        while len(symbols) > 1:
            merges.append((symbols[0], symbols[1]))
            symbols = joined(symbols, merges[-1])
    return merges


def joined(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """`symbols` with the pair made one wherever it stands."""
    done: list[str] = []
    for symbol in symbols:
        if done and (done[-1], symbol) == pair:
            done[-1] += symbol
        else:
            done.append(symbol)
    return done


MERGES = learnt(WORDS)


def metadata(pre: str = "gpt-2", without: str = "", **changes: Any) -> dict[str, Any]:
    """Keys of a small sound vocabulary, less the character `without`; None takes a key away."""
    alphabet = [char for char in ALPHABET.values() if char != without]
    normal = list(dict.fromkeys([*alphabet, *(left + right for left, right in MERGES)]))
    tokens = [*normal, *SPECIALS]
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [NORMAL] * len(normal) + list(SPECIALS.values()),
        "merges": [f"{left} {right}" for left, right in MERGES],
        "bos_token_id": tokens.index("<|im_start|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
    }
    keys |= changes
    return {PREFIX + name: value for name, value in keys.items() if value is not None}


def tokenizer(pre: str = "gpt-2", without: str = "", **changes: Any) -> Tokenizer:
    """The tokenizer of `metadata`."""
    return Tokenizer.from_metadata(metadata(pre, without, **changes).get)


def mixed_texts(seed: int, count: int, specials: Sequence[str]) -> Iterator[str]:
    """Texts joined from pieces of every kind; without NUL, which no C string can bring."""
    rng = random.Random(seed)
    makers = _makers(rng, specials)
    for number in range(count):
        n_pieces = 3000 if number % 400 == 399 else rng.choice((1, 2, 3, 8, 30, 80))
        yield "".join(rng.choice(makers)() for _ in range(n_pieces))


ENGLISH = "The|the|quick|don't|I'LL|we've|'s'S|O'Neill|it's|e-mail|naïve|coöperate|U.S.|!!"
CODE = "def f(x):\n|\treturn x->y;|  if (a != b) {|}\r\n|/* */|#include <a.h>|[0]|_x1|::|=>|\\n"
SCRIPTS = "漢字かな|カタカナ|한국어|Привет|Ελλάδα|مرحبا|שלום|नमस्ते दुनिया|สวัสดีครับ|ñandú|Ⅷ½²٣１２"
EMOJI = "🦙|👩\u200d👩\u200d👧|🏳️\u200d🌈|👍🏽|🇩🇪|❤️|☃"
MARKS = "e\u0301|o\u0308|\u0301|क\u094d\u0937|a\u0300\u0323|\u20dd|\u200d|\ufe0f"
SPACES = " |  |   |\n|\n\n|\r\n|\t| \n|\u00a0|\u3000|\u2028|\u0085"
ODD = "\ufffd|\ufeff|<|im_|im_end|>|\\ud83d|%s|\x7f|<\u01c0|[PAD7]|'"


def _makers(rng: random.Random, specials: Sequence[str]) -> list[Callable[[], str]]:
    def one_of(pieces: str) -> Callable[[], str]:
        return lambda: rng.choice(pieces.split("|"))

    return [
        *(one_of(pieces) for pieces in (CODE, SCRIPTS, EMOJI, MARKS, ODD)),
        lambda: one_of(ENGLISH)() + " ",
        lambda: one_of(SPACES)() * rng.choice((1, 1, 2, 7, 40)),
        lambda: str(rng.randrange(10 ** rng.randrange(1, 9))),
        lambda: rng.choice(specials),
        lambda: rng.choice(specials)[: rng.randrange(1, 9)],
        lambda: chr(rng.randrange(1, 32)) * rng.choice((1, 2)),
        lambda: _assigned(rng),
    ]


def _assigned(rng: random.Random) -> str:
    """Any character of this Python's Unicode; not a surrogate, not one that later tables added."""
    while True:
        char = chr(rng.randrange(1, 0x110000))
        if unicodedata.category(char) not in ("Cs", "Cn", "Co"):
            return char
