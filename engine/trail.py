"""Owns the marks that tell sequences of tokens apart.

A mark is 64 bits that follow from all tokens up to a place. Cells, recurrent states and exported
bytes carry theirs, because parts of two sequences have the same shapes and lengths and would run
together without complaint.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate

# The mark of no tokens at all.
EMPTY = 0
MARK_BYTES = 8
TOKEN_BYTES = 4


def marks_after(mark: int, tokens: Sequence[int]) -> list[int]:
    """The marks after each of some tokens, which follow the tokens that `mark` stands for."""
    return list(accumulate(tokens, _follow, initial=mark))[1:]


def _follow(mark: int, token: int) -> int:
    raw = mark.to_bytes(MARK_BYTES, "little") + token.to_bytes(TOKEN_BYTES, "little")
    return int.from_bytes(blake2b(raw, digest_size=MARK_BYTES).digest(), "little")
