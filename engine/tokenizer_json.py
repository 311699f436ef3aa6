"""Owns the reading of an upstream tokenizer.json into the metadata that `vocabulary.py` checks.

Only byte-level BPE with a known pre-tokeniser rule is read: the rule is found by comparing the
file's own patterns and normalisation with the table, never by a name. Special tokens become
control tokens, other added ones user-defined; ids that nothing names become unused tokens.
"""

import json
from collections.abc import Mapping
from typing import Any

from engine.errors import ModelError
from engine.pretokenizers import PRE_TOKENIZERS
from engine.vocabulary import CONTROL, NORMAL, PREFIX, UNUSED, USER_DEFINED

# Rules by what a tokenizer.json says of them; names that mean the same rule come once.
RULE_NAMES = ("qwen35", "qwen2", "smollm", "gpt2", "llama3")
MAX_IDS = 1 << 21


def tokenizer_metadata(text: str) -> Mapping[str, Any]:
    """`tokenizer.ggml.*` keys of a tokenizer.json; ModelError naming what cannot be read."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError):
        raise ModelError("tokenizer.json: not valid JSON") from None
    model = _table(root, "model")
    if model.get("type") not in (None, "BPE"):
        raise ModelError(f"tokenizer.json: model type {model.get('type')!r}; only BPE is read")
    tokens, types = _tokens(_table(model, "vocab"), root.get("added_tokens") or [])
    return {
        f"{PREFIX}model": "gpt2",
        f"{PREFIX}pre": _rule_name(root),
        f"{PREFIX}tokens": tokens,
        f"{PREFIX}token_type": types,
        f"{PREFIX}merges": [_merge(merge) for merge in model.get("merges") or []],
        f"{PREFIX}add_bos_token": False,
    }


def _table(parent: Any, key: str) -> dict[str, Any]:
    value = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(value, dict):
        raise ModelError(f"tokenizer.json: {key} is not an object")
    return value


def _tokens(vocab: dict[str, Any], added: Any) -> tuple[list[str], list[int]]:
    """Texts and types by id."""
    rows = [(text, token_id, NORMAL) for text, token_id in vocab.items()]
    for token in added if isinstance(added, list) else []:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise ModelError(f"tokenizer.json: added token {token!r} has no text")
        kind = CONTROL if token.get("special") else USER_DEFINED
        rows.append((token["content"], token.get("id"), kind))
    found: dict[int, tuple[str, int]] = {}
    for text, token_id, kind in rows:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise ModelError(f"tokenizer.json: token {text!r} has the id {token_id!r}")
        if token_id >= MAX_IDS:
            raise ModelError(f"tokenizer.json: id {token_id} above {MAX_IDS - 1}")
        # An added token may stand in the vocabulary too, under the same id and text.
        if found.get(token_id, (text,))[0] != text:
            other = found[token_id][0]
            raise ModelError(f"tokenizer.json: id {token_id} is {other!r} and {text!r}")
        found[token_id] = (text, kind)
    if not found:
        raise ModelError("tokenizer.json: no tokens")
    filled = [found.get(i, (f"<|unused_{i}|>", UNUSED)) for i in range(max(found) + 1)]
    return [text for text, _ in filled], [kind for _, kind in filled]


def _merge(merge: Any) -> str:
    if isinstance(merge, str):
        return merge
    if isinstance(merge, list) and len(merge) == 2 and all(isinstance(m, str) for m in merge):
        return " ".join(merge)
    raise ModelError(f"tokenizer.json: merge {merge!r} is not a pair of texts")


def _rule_name(root: dict[str, Any]) -> str:
    """The rule whose patterns and normalisation are the file's."""
    patterns, composes = _patterns(root.get("pre_tokenizer")), _composes(root.get("normalizer"))
    for name in RULE_NAMES:
        rule = PRE_TOKENIZERS[name]
        if (rule.patterns, rule.composes) == (patterns, composes):
            return name
    raise ModelError(
        f"tokenizer.json: no known rule has the patterns {patterns!r}, NFC {composes}"
    )


def _patterns(part: Any) -> tuple[str, ...]:
    """Split patterns in order; a byte-level step with its own regex is GPT-2's."""
    if not isinstance(part, dict):
        return ()
    kind = part.get("type")
    if kind == "Sequence":
        steps = part.get("pretokenizers")
        parts = steps if isinstance(steps, list) else []
        return tuple(pattern for step in parts for pattern in _patterns(step))
    if kind == "Split":
        pattern = part.get("pattern")
        return (str(pattern.get("Regex")),) if isinstance(pattern, dict) else ("",)
    if kind == "Digits":
        return (r"\p{N}",) if part.get("individual_digits") else (r"\p{N}+",)
    if kind == "ByteLevel":
        return PRE_TOKENIZERS["gpt2"].patterns if part.get("use_regex", True) else ()
    return (f"<{kind}>",)


def _composes(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "NFC"
