"""Owns whether a draft model may draft for a target: same tokenizer, same vocabulary.

It must not know where the facts come from.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """A digest over everything that turns text into ids, and the rows of the vocabulary."""

    sha256: str
    n_vocab: int


def pairing_fault(target: TokenizerFacts, draft: TokenizerFacts) -> str | None:
    """None when the two fit, else why not."""
    if target.n_vocab != draft.n_vocab:
        return f"vocabulary of {draft.n_vocab} rows for a target of {target.n_vocab}"
    if target.sha256.lower() != draft.sha256.lower():
        return "tokenizers differ"
    return None
