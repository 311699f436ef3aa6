"""Owns telling a response's reasoning from its answer.

Knows nothing of tool calls or of JSON. Only a block at the very start is reasoning: one that the
prompt has opened, or one that the text opens itself. What is told stays true when the text grows.
"""

from dataclasses import dataclass

OPEN = "<think>"
CLOSE = "</think>"


@dataclass(frozen=True)
class Split:
    """`reasoning` without surrounding white space, and the position where the answer begins.

    `is_undecided` marks a text too short to tell: it may still turn out to open a block.
    """

    reasoning: str
    answer_start: int
    is_undecided: bool = False


def split_reasoning(text: str, in_thinking: bool, is_final: bool) -> Split:
    """Where the reasoning ends. Without an end tag all of an opened block is reasoning."""
    lead = len(text) - len(text.lstrip())
    may_open = OPEN.startswith(text[lead:])
    if not is_final and may_open and len(text) - lead < len(OPEN):
        return Split("", len(text) if in_thinking else 0, is_undecided=not in_thinking)
    is_opened = text.startswith(OPEN, lead)
    if not is_opened and not in_thinking:
        return Split("", 0)
    start = lead + len(OPEN) if is_opened else 0
    end = text.find(CLOSE, start)
    if end < 0:
        inner = text[start:] if is_final else without_started(text[start:], CLOSE)
        return Split(inner.strip(), len(text))
    return Split(text[start:end].strip(), end + len(CLOSE))


def without_started(text: str, tag: str) -> str:
    """`text` without the beginning of `tag` that it may end in."""
    for n_chars in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:n_chars]):
            return text[:-n_chars]
    return text
