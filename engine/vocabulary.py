"""Owns the vocabulary as a model file's metadata states it: every key checked, nothing guessed.

A hostile or damaged file is refused here, key by key, with a ModelError that names key, value and
limit; what comes out is consistent, so nothing after it checks again. Keys are those of GGUF
(`tokenizer.ggml.*`), values plain Python.

Must not know the encoder library, files or devices.
"""

import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelError
from engine.pretokenizers import PRE_TOKENIZERS, PreTokenizer

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# What a token of type BYTE is called, and the byte it is.
BYTE_TEXTS = {f"<0x{byte:02X}>": byte for byte in range(256)}
SPECIAL_ID_NAMES = (
    *("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "mask"),
    *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
)


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer is made of; ids are places in `tokens`.

    `ids` is `tokens` the other way round; `types` has one of NORMAL to BYTE for each token;
    `merges` are pairs of tokens, best first; `special_ids` maps those of SPECIAL_ID_NAMES that the
    file gives; `adds` holds "bos" and "eos" where a text that asks for special tokens gets them.
    """

    rule: PreTokenizer
    tokens: list[str]
    ids: dict[str, int]
    types: list[int]
    merges: list[tuple[str, str]]
    special_ids: dict[str, int]
    adds: frozenset[str]


def read_vocabulary(get: Callable[[str, Any], Any]) -> Vocabulary:
    """The vocabulary that `get(key, default)` describes. ModelError for anything else."""
    keys = _Keys(get)
    kind = keys.text("model")
    if kind != "gpt2":
        raise ModelError(f"{PREFIX}model is {_short(kind)}; only byte-level BPE, 'gpt2', is read")
    rule = _rule(keys.text("pre"))
    tokens = _tokens(keys)
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    special_ids = _special_ids(keys, len(tokens))
    return Vocabulary(
        rule=rule,
        tokens=tokens,
        ids=ids,
        types=_types(keys, tokens),
        merges=_merges(keys, ids),
        special_ids=special_ids,
        adds=_adds(keys, rule, special_ids),
    )


class _Keys:
    """Access to `tokenizer.ggml.*` by the rest of the name, checked for the kind of value."""

    def __init__(self, get: Callable[[str, Any], Any]) -> None:
        self._get = get

    def value(self, name: str) -> Any:
        """Whatever stands there; None for a missing key."""
        return self._get(PREFIX + name, None)

    def text(self, name: str) -> str:
        return _checked_text(name, self.value(name))

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(PREFIX + name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{PREFIX}{name} is {_short(value)}; it must be true or false")
        return value

    def items(self, name: str) -> list[Any]:
        value = self.value(name)
        if not isinstance(value, list | tuple):
            raise ModelError(f"{PREFIX}{name} is {_short(value)}; it must be a list")
        return list(value)

    def texts(self, name: str) -> list[str]:
        items = self.items(name)
        return [_checked_text(name, value, index) for index, value in enumerate(items)]


def _rule(name: str) -> PreTokenizer:
    if name not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise ModelError(f"{PREFIX}pre is {_short(name)}; the rules known are {known}")
    return PRE_TOKENIZERS[name]


def _tokens(keys: _Keys) -> list[str]:
    tokens = keys.texts("tokens")
    if not tokens:
        raise ModelError(f"{PREFIX}tokens has 0 entries; a vocabulary has at least 1")
    first: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if first.setdefault(token, index) != index:
            raise ModelError(
                f"{PREFIX}tokens[{index}] is {_short(token)}, as tokens[{first[token]}] is; a text"
                " is one token only"
            )
    return tokens


def _types(keys: _Keys, tokens: Sequence[str]) -> list[int]:
    """All NORMAL where the file says nothing."""
    if keys.value("token_type") is None:
        return [NORMAL] * len(tokens)
    types = keys.items("token_type")
    if len(types) != len(tokens):
        raise ModelError(f"{PREFIX}token_type has {len(types)} entries for {len(tokens)} tokens")
    for index, (kind, token) in enumerate(zip(types, tokens, strict=True)):
        if not _is_below(kind, BYTE + 1) or kind < NORMAL:
            raise ModelError(
                f"{PREFIX}token_type[{index}] is {_short(kind)}; types are {NORMAL} to {BYTE}"
            )
        if kind == BYTE and token not in BYTE_TEXTS:
            raise ModelError(
                f"{PREFIX}tokens[{index}] is {_short(token)} and a byte by its type; bytes are"
                " <0x00> to <0xFF>"
            )
    return types


def _merges(keys: _Keys, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Of a pair that stands twice only the first counts, as in the reference runtime."""
    pairs = []
    for index, merge in enumerate(keys.texts("merges")):
        left, _, right = merge.partition(" ")
        if not (left in ids and right in ids and left + right in ids):
            raise ModelError(
                f"{PREFIX}merges[{index}] is {_short(merge)}; it must be two tokens with one space"
                " between, and the two joined must be a token as well"
            )
        pairs.append((left, right))
    return list(dict.fromkeys(pairs))


def _special_ids(keys: _Keys, n_vocab: int) -> dict[str, int]:
    found = {name: keys.value(f"{name}_token_id") for name in SPECIAL_ID_NAMES}
    special_ids = {name: value for name, value in found.items() if value is not None}
    for name, value in special_ids.items():
        if not _is_below(value, n_vocab):
            raise ModelError(
                f"{PREFIX}{name}_token_id is {_short(value)}; the vocabulary has ids 0 to"
                f" {n_vocab - 1}"
            )
    return special_ids


def _adds(keys: _Keys, rule: PreTokenizer, special_ids: Collection[str]) -> frozenset[str]:
    if keys.flag("add_space_prefix", False):
        raise ModelError(
            f"{PREFIX}add_space_prefix is true; byte-level BPE puts no space before a text"
        )
    wanted = {
        "bos": keys.flag("add_bos_token", rule.adds_bos),
        "eos": keys.flag("add_eos_token", False),
    }
    adds = frozenset(name for name, want in wanted.items() if want)
    for name in sorted(adds.difference(special_ids)):
        raise ModelError(f"{PREFIX}{name}_token_id is missing, and every text is to get that token")
    return adds


def _checked_text(name: str, value: Any, index: int | None = None) -> str:
    """`value`, str or bytes, as text that is not empty and that UTF-8 can hold."""
    try:
        if isinstance(value, bytes):
            value = value.decode()
        if isinstance(value, str) and value.encode():
            return value
    except UnicodeError:
        pass
    place = name if index is None else f"{name}[{index}]"
    raise ModelError(f"{PREFIX}{place} is {_short(value)}; it must be a text in UTF-8, not empty")


def _is_below(value: Any, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _short(value: Any) -> str:
    """`value` for a message, cut where it is long."""
    return reprlib.repr(value)
