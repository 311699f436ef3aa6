"""Owns reading a model's response: text and metadata in, one assistant message out.

Knows nothing of prompts or templates. Contract: section 4.2 of the ABI's semantics. Rules:
- Partial answers only grow. What may still become markup is held back; the final answer gives it
  out as content if it never did. A call appears at once, when it is complete.
- `content` is always a string. White space between calls, and beside them, is dropped; pieces of
  text around calls are joined by a newline.
- Reasoning comes first or not at all, and nothing inside it is a call. Format `none` leaves it in
  the content as it was written.
- A call's id depends on the request and the call's index only.
- A text that cannot be UTF-8 is refused; a character cut off at the end of the bytes is left out.
"""

import codecs
import hashlib
from functools import lru_cache
from typing import Any

from engine.chat.json_scan import Broken
from engine.chat.json_text import check_text, write_json
from engine.chat.metadata import ResponsePlan, read_plan
from engine.chat.reasoning import split_reasoning, without_started
from engine.chat.tool_formats import FORMATS, OPENER, Call
from engine.errors import Unsupported


def parse_response(text: str, metadata_json: str, *, is_partial: bool) -> str:
    """The assistant message as JSON text: role, content, and what was found of
    `reasoning_content` and `tool_calls`. Raises Unsupported for metadata that is not ours, for
    text that is not Unicode, and for a call with an unpaired surrogate."""
    return _parsed(text, metadata_json, is_partial)


def parse_response_bytes(raw: bytes, metadata_json: str, *, is_partial: bool) -> str:
    """The same from UTF-8 bytes. An unfinished character at the end is left out; other bytes
    that are not UTF-8 raise Unsupported with their position."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError as error:
        raise Unsupported(f"generated text: not UTF-8 at byte {error.start}") from None
    return _parsed(text, metadata_json, is_partial)


# The host asks twice for each answer, first for its length.
@lru_cache(maxsize=4)
def _parsed(text: str, metadata_json: str, is_partial: bool) -> str:
    plan = read_plan(metadata_json)
    check_text(text.replace("\0", " "), "generated text")
    split = split_reasoning(text, plan.in_thinking, not is_partial)
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    start = split.answer_start
    if plan.reasoning_format == "none":
        message["content"] = text[:start]
    elif split.is_undecided:
        start = len(text)
    else:
        if split.reasoning:
            message["reasoning_content"] = split.reasoning
        if start:
            start += len(text[start:]) - len(text[start:].lstrip("\r\n"))
    content, calls = _answer(text, start, plan, not is_partial)
    message["content"] += content
    if calls:
        message["tool_calls"] = [_record(call, i, plan.seed) for i, call in enumerate(calls)]
    return write_json(message)


def _answer(text: str, start: int, plan: ResponsePlan, is_final: bool) -> tuple[str, list[Call]]:
    if not plan.tool_format:
        return text[start:], []
    read = FORMATS[plan.tool_format].read
    pieces: list[str] = []
    calls: list[Call] = []
    position = start
    while (tag := text.find(OPENER, position)) >= 0:
        call = read(text, tag + len(OPENER), is_final, plan.types)
        if isinstance(call, Call):
            pieces.append(text[start:tag])
            calls.append(call)
            position = start = call.end
        elif call is Broken.UNFINISHED and not is_final:
            pieces.append(text[start:tag].rstrip())
            break
        else:
            position = tag + len(OPENER)
    else:
        # White space at the end is dropped if a call follows, so it waits for what follows.
        rest = text[start:]
        pieces.append(rest if is_final else without_started(rest, OPENER).rstrip())
    return _joined(pieces), calls


def _joined(pieces: list[str]) -> str:
    """The text around the calls that stood between the pieces."""
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    trimmed = [first.rstrip(), *(piece.strip() for piece in middle), last.lstrip()]
    return "\n".join(piece for piece in trimmed if piece)


def _record(call: Call, index: int, seed: str) -> dict[str, Any]:
    digest = hashlib.sha256(f"{seed}:{index}".encode()).hexdigest()
    function = {"name": call.name, "arguments": call.arguments}
    return {"type": "function", "id": f"call_{digest[:24]}", "function": function}
